"""Small trainings, inversions and distillations; torch and numpy alone, so also on a bare GPU."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.training import Batch, Loss, PlainHooks, train_local
from fedsyn_flwr.compute.cuda_graphs import Passes
from fedsyn_flwr.models import build_model
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.server import distillation
from fedsyn_flwr.synthesis.inversion import InversionSettings, invert


def settings(**keys: Any) -> Any:
    """What a local training asks of its configuration, which needs more packages."""
    plain = {"local_epochs": 6, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.9}
    rest = {"weight_decay": 0.0, "clip_norm": 1.0, "amp": False}
    return SimpleNamespace(**{**plain, **rest, **keys})


def cnn(device: str = "cpu") -> FlatModel:
    module = build_model("cnn", in_shape=(3, 16, 16), num_classes=4, width=0.25, seed=0)
    return FlatModel(module.to(device))


def vgg(device: str = "cpu") -> FlatModel:
    """With BatchNorm and dropout."""
    module = build_model("vgg8", in_shape=(3, 16, 16), num_classes=4, norm="bn", width=0.05, seed=0)
    return FlatModel(module.to(device))


def images(n: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last), torch.arange(n) % 4


def trained(passes: Passes, flat: FlatModel | None = None, n: int = 30, **keys: Any) -> FlatModel:
    flat = flat or vgg()
    x, y = (t.to(flat.trainable.device) for t in images(n))

    def loss(batch: Batch) -> Loss:
        value = F.cross_entropy(flat.module(batch.x), batch.y)
        return Loss(value, value)

    def fetch(chosen: Tensor) -> Batch:
        return Batch(x[chosen], y[chosen])

    rows = torch.arange(n)
    hooks, key = PlainHooks(fetch, loss), (1,)
    train_local(flat, rows, hooks, settings(**keys), seed=0, key=key, passes=passes)
    return flat


def distilled(passes: Passes, amp: bool = False, device: str = "cpu") -> FlatModel:
    flat, x = vgg(device), images(20)[0].to(device)
    target = torch.rand(20, 4, generator=torch.Generator().manual_seed(1)).softmax(dim=1).to(device)
    given = distillation.DistilSettings(9, 1e-2, 1e-6, 8, 1.0, True, amp)
    distillation.distil(flat, lambda i: x[i], target, given, seed=0, key=(1,), passes=passes)
    return flat


def inverted(passes: Passes, amp: bool = False, name: str = "cnn", device: str = "cpu") -> Tensor:
    model = build_model(name, in_shape=(3, 16, 16), num_classes=4, norm="bn", width=0.25, seed=1)
    x, y = (t.to(device) for t in images(7))
    given = InversionSettings(8, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector", batch=3, amp=amp)
    prototypes = torch.zeros(7, model.feature_dim, device=device)
    g = torch.Generator().manual_seed(3)
    return invert(model.to(device), x, y, prototypes, given, g, passes=passes).images
