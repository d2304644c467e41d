"""A client of two weights and a quadratic loss, so that its training can be worked by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness import told
from torch import nn

from fedsyn_flwr.client.numpy_client import FedClient
from fedsyn_flwr.client.state import NodeState
from fedsyn_flwr.client.training import Batch, Loss
from fedsyn_flwr.compute.cuda_graphs import Graphs
from fedsyn_flwr.config import TrainConfig
from fedsyn_flwr.messages.payload import Group, Groups, pack, unpack
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.models.flat_model import FlatModel


def train_config(**keys: Any) -> TrainConfig:
    """Two steps of plain SGD with η = 0.1."""
    plain = {
        "local_epochs": 2,
        "batch_size": 2,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "clip_norm": 0.0,
        "device": "cpu",
        "threads_per_client": 1,
        "channels_last": False,
        "amp": False,
        "cuda_graphs": False,
    }
    return TrainConfig(**{**plain, **keys})


def quadratic(kind: type[FedClient], folder: Path, params: Any = None, **train: Any) -> FedClient:
    """A client of that kind with two samples, two weights and the loss ½‖w‖²."""

    class Quadratic(kind):  # type: ignore[valid-type, misc]
        def loss(self, batch: Batch) -> Loss:
            value = 0.5 * self.flat.module.classifier.weight.square().sum()
            return Loss(value, value)

    head = nn.Linear(1, 2, bias=False)
    model = SplitModel(nn.Identity(), nn.Identity(), head, feature_dim=1, num_classes=2)
    worker = SimpleNamespace(
        flat=FlatModel(model),
        rows=lambda partition: torch.arange(2),
        owner=lambda partition: partition,
        settings=SimpleNamespace(
            params=params,
            train=train_config(**train),
            federation=SimpleNamespace(seed=0),
            privacy=SimpleNamespace(dp_clip=0.0, dp_sigma=0.0),
        ),
        fetch=lambda chosen, generator: Batch(torch.zeros(2, 1), torch.zeros(2)),
        state=lambda run: NodeState(folder, run),
        graphs=Graphs(on=False),
    )
    return Quadratic(worker, 0)


def fit(client: FedClient, w: list[float], number: int = 1, **extra: Group) -> Groups:
    """One message to the client, and its answer."""
    layout = client.flat.layout
    model = {
        "trainable": np.array(w, np.float32),
        "buffers": np.zeros(0, np.float32),
        "counters": np.zeros(0, np.int64),
    }
    message = told(number, last=number - 1)
    arrays, _, _ = client.fit(pack({"model": model, **extra}, layout), message)
    return unpack([array.copy() for array in arrays], layout)
