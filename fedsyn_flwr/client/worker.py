"""What a process keeps resident for all the clients it serves: data, model, device."""

from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr import build, config
from fedsyn_flwr.build import flat_model, resident
from fedsyn_flwr.client.state import NodeState, default_root
from fedsyn_flwr.client.supernode import OwnData, own_data
from fedsyn_flwr.client.training import Batch
from fedsyn_flwr.compute.cuda_graphs import Graphs
from fedsyn_flwr.compute.device import bound_memory, gpu_share
from fedsyn_flwr.compute.process import keep_freed_memory
from fedsyn_flwr.data import ImageSet, ResidentData, augment
from fedsyn_flwr.data.feature_skew import skewed
from fedsyn_flwr.data.holdout import hold_out
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.shared_memory import Slots
from fedsyn_flwr.models.flat_model import KINDS, FlatModel
from fedsyn_flwr.rng import numpy_generator

Scalar = config.Scalar
T = TypeVar("T")
Holding = int | OwnData
Split = tuple[list[np.ndarray], list[np.ndarray]]
UNPLACED = -1


class Worker:
    """The resident parts of one run in one process.

    Parameters
    ----------
    settings : Config
        The run's configuration.
    holding : int or OwnData
        Into how many clients the training data are split, or the node's own data.
    """

    def __init__(self, settings: config.Config, holding: Holding) -> None:
        keep_freed_memory()
        if settings.train.threads_per_client:
            torch.set_num_threads(settings.train.threads_per_client)
        self.settings = settings
        self.device = build.device(settings)
        bound_memory(self.device, gpu_share())
        self.own = holding if isinstance(holding, OwnData) else None
        train, parts = held(settings, holding)
        self.data = resident(settings, train, self.device)
        parts, held_out = self.split(train.labels, parts)
        self.partitions = [torch.from_numpy(part) for part in parts]
        self.tests = [torch.from_numpy(part) for part in held_out]
        self.test_data = self.data
        if self.own and settings.evaluation.federated:
            self.bring(self.own)
        self.flat = flat_model(settings, self.data.shape, self.device)
        self.augmented = build.augments(settings)
        self.spares: list[FlatModel] = []
        self.kept: dict[str, Any] = {}
        self.slots = Slots()
        self.graphs = Graphs(settings.train.cuda_graphs)

    def rows(self, partition: int) -> Tensor:
        """Indices of a client's samples, shape (n,); on a node with its own data all there are."""
        return self.partitions[0 if self.own else partition]

    def split(self, labels: np.ndarray, parts: list[np.ndarray]) -> Split:
        """What each client trains on, and what it holds out."""
        fraction = self.settings.evaluation.client_test_fraction
        brings = self.own is not None and self.own.has_test
        if not fraction or brings:
            return parts, [part[:0] for part in parts]
        seed = self.settings.federation.seed
        pairs = [
            hold_out(part, labels[part], fraction, numpy_generator(seed, self.owner(k), "held-out"))
            for k, part in enumerate(parts)
        ]
        return [train for train, _ in pairs], [test for _, test in pairs]

    def bring(self, own: OwnData) -> None:
        """Test on the node's own test split, where it has one."""
        test = own.load_test(self.settings)
        if test is None:
            return
        self.test_data = resident(self.settings, test, self.device)
        if self.test_data.shape != self.data.shape:
            raise UserError(
                f"SuperNode {own.name}: its test images are {self.test_data.shape}, those it "
                f"trains on {self.data.shape} (channels, height, width): resize them"
            )
        self.tests = [torch.arange(len(self.test_data))]

    def held_out(self, partition: int) -> tuple[ResidentData, Tensor]:
        """A client's test images: data, and indices of those that are its, shape (n,)."""
        return self.test_data, self.tests[0 if self.own else partition]

    def owner(self, partition: int) -> int | str:
        """What a client's state is kept under: unlike a place given by the server, a node's name
        is the same in a later attempt at the run.
        """
        return self.own.name if self.own else partition

    def identity(self, partition: int) -> dict[str, Scalar]:
        """How a client introduces itself to the server."""
        if self.own is None:
            return {"partition-id": partition, "num-partitions": len(self.partitions)}
        return {"node-name": self.own.name, "image-shape": "x".join(map(str, self.data.shape))}

    def fetch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """A training batch, augmented where the run says so."""
        x, y = self.data.x(indices), self.data.y(indices)
        return Batch(augment(x, generator) if self.augmented else x, y)

    def move_in(self, message: Hashable) -> None:
        """Have the model live where the answer to this message will be: one that begins with it
        is not copied.

        Its last home is the last answer's, which the server may not have read yet. So whatever
        the phase, a model is received in a new one, and is good until the answer.
        """
        if self.device.type == "cpu":
            vectors = list(self.flat.vectors().values())
            home = self.slots.lend(vectors, message)
            if home is None:
                home = [np.empty_like(vector) for vector in vectors]
            self.flat.move(dict(zip(KINDS, home, strict=True)))

    def spare(self, slot: int) -> FlatModel:
        """Another network like the resident one, for frozen copies: in eval mode, no gradients.

        Built when first asked for and kept, so that frozen models cost a copy per round.
        """
        while len(self.spares) <= slot:
            spare = flat_model(self.settings, self.data.shape, self.device)
            spare.module.eval().requires_grad_(False)
            self.spares.append(spare)
        return self.spares[slot]

    def once(self, name: str, build: Callable[[], T]) -> T:
        """What a method needs beside the model: built when first asked for, then kept."""
        if name not in self.kept:
            self.kept[name] = build()
        found: T = self.kept[name]
        return found

    def state(self, run: str) -> NodeState:
        """This node's store for a run."""
        root = self.settings.output.state_dir
        return NodeState(Path(root) if root else default_root(), run)


def held(settings: config.Config, holding: Holding) -> tuple[ImageSet, list[np.ndarray]]:
    """The training images of a node and the indices of each of its clients."""
    if isinstance(holding, OwnData):
        own = holding.load(settings)
        return own, [np.arange(len(own.labels))]
    train, data = build.images(settings, "train"), settings.data
    parts = build.partitions(settings, train, holding)
    seed = settings.federation.seed
    taken = skewed(train, parts, data.feature_skew, data.feature_skew_strength, seed=seed)
    return taken, parts


@lru_cache(maxsize=1)
def _worker(run_config: tuple[tuple[str, Any], ...], holding: Holding) -> Worker:
    return Worker(config.load(dict(run_config)), holding)


def worker_for(run_config: config.RunConfig, holding: Holding) -> Worker:
    """This process's worker, built once and kept while the configuration stays the same."""
    return _worker(tuple(sorted(run_config.items())), holding)


def place_of(node_config: config.RunConfig, run_config: config.RunConfig) -> tuple[int, Holding]:
    """The client's partition and what its worker holds.

    A node with its own data has no place until the server gives it one, with each message.

    Raises
    ------
    UserError
        If the node lacks what the run's ``partition`` needs.
    """
    if run_config["partition"] == SCHEME:
        return UNPLACED, own_data(node_config)
    return partition_of(node_config)


def partition_of(node_config: config.RunConfig) -> tuple[int, int]:
    """(partition-id, num-partitions) of a node.

    Raises
    ------
    UserError
        If the node says neither.
    """
    try:
        return int(node_config["partition-id"]), int(node_config["num-partitions"])
    except KeyError:
        raise UserError(
            "this node has no partition: start its SuperNode with "
            "--node-config 'partition-id=0 num-partitions=10', "
            f"or, for nodes with data of their own, the run with partition = {SCHEME!r}"
        ) from None


def label_counts(labels: Tensor, num_classes: int) -> np.ndarray:
    """Samples per class, shape (C,), int64."""
    return torch.bincount(labels, minlength=num_classes).cpu().numpy()
