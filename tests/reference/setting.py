"""What all references share: data, batches, the local loop, the average. No method is in here."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr import build, config
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.rng import numpy_generator, torch_generator

# Clients of unequal sizes, weight decay and clipping that are felt, a last batch of another size.
BASE: dict[str, Any] = {
    "dataset": "digits",
    "limit-train": 240,
    "limit-test": 100,
    "num-clients": 4,
    "dirichlet-alpha": 0.5,
    "num-server-rounds": 3,
    "model-width": 0.25,
    "local-epochs": 2,
    "batch-size": 16,
    "weight-decay": 1e-3,
    "clip-norm": 2.0,
    "privacy-report": False,
    "device": "cpu",
}

State = dict[str, Tensor]


class Loss(NamedTuple):
    """What a step minimises, and the cross-entropy of its real samples."""

    objective: Tensor
    cross_entropy: Tensor


class Trained(NamedTuple):
    """A client's model after a round, its steps, its mean cross-entropy over the samples seen."""

    model: SplitModel
    steps: int
    loss: float


LossOf = Callable[[SplitModel, Tensor, Tensor], Loss]


class Setting:
    """A federation's data and keys: ``Setting({"fedprox-mu": 0.1})["fedprox-mu"]``.

    Attributes
    ----------
    x, y, test_x : Tensor
        All training images, normalised (N, C, H, W), their labels (N,); the test images.
    parts : list of Tensor
        Each client's rows.
    shares : list of float
        p_k, of the samples, or the same for all with ``weighting = "uniform"``.
    rounds : range
        1, 2, ...
    """

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = config.merged(BASE, keys)
        self.config = config.load(self.keys)
        facts, train = build.spec(self.config), build.images(self.config, "train")
        self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (facts.mean, facts.std))
        self.x, self.y = self.normal(torch.tensor(train.images)), torch.tensor(train.labels).long()
        self.test_x = self.normal(torch.tensor(build.images(self.config, "test").images))
        self.classes = facts.num_classes
        parts = build.partitions(self.config, train, self["num-clients"])
        self.parts = [torch.from_numpy(part) for part in parts]
        sizes = [len(part) if self["weighting"] == "examples" else 1 for part in parts]
        self.shares = [size / sum(sizes) for size in sizes]
        self.clients = range(len(parts))
        self.rounds = range(1, self["num-server-rounds"] + 1)

    def __getitem__(self, key: str) -> Any:
        return self.keys[key]

    def normal(self, pixels: Tensor) -> Tensor:
        """Pixels 0 to 255 less their mean, over their deviation."""
        return (pixels / 255 - self.mean) / self.std

    def one_hot(self, y: Tensor) -> Tensor:
        """Labels (N,) as (N, classes)."""
        return F.one_hot(y, self.classes).float()

    def model(self, state: State | None = None) -> SplitModel:
        """The network at these weights, or at the run's initial ones."""
        model = build.network(self.config, tuple(self.x.shape[1:]))
        if state is not None:
            model.load_state_dict(state)
        return model

    def initial(self) -> State:
        """w_1."""
        return deepcopy(self.model().state_dict())

    def stream(self, *key: int | str) -> torch.Generator:
        """The random numbers of one purpose."""
        return torch_generator(self["seed"], *key)

    def batches(self, t: int, k: int) -> Iterator[Tensor]:
        """Rows of each batch of client k's round; a last one of one sample joins that before."""
        order, size = self.stream(t, k, "batches"), self["batch-size"]
        for _ in range(self["local-epochs"]):
            rows = self.parts[k][torch.randperm(len(self.parts[k]), generator=order)]
            pieces = list(rows.split(size))
            if len(pieces) > 1 and len(pieces[-1]) == 1:
                pieces[-2:] = [torch.cat(pieces[-2:])]
            yield from pieces

    def sampled(self, t: int) -> list[int]:
        """The clients of round t, ``fraction-fit`` of them."""
        source = numpy_generator(self["seed"], t, 0, "sampling")
        count = max(1, round(self["fraction-fit"] * len(self.clients)))
        return sorted(source.choice(self.clients, size=count, replace=False).tolist())

    def average(self, states: list[State], whose: Sequence[int] = ()) -> State:
        """Σ p_k w_k / Σ p_k of these clients, all where none are named; of integers the maximum."""
        p = torch.tensor([self.shares[k] for k in whose or self.clients], dtype=torch.float64)
        p = p / p.sum()
        mean = {}
        for name, like in states[0].items():
            each = torch.stack([state[name] for state in states])
            floating = like.is_floating_point()
            average = torch.tensordot(p, each.double(), 1) if floating else each.amax(0)
            mean[name] = average.to(like.dtype)
        return mean

    def local(
        self,
        start: State,
        t: int,
        k: int,
        loss: LossOf,
        correct: Callable[[SplitModel], None] = lambda model: None,
    ) -> Trained:
        """E epochs of SGD from ``start``; ``correct`` changes gradients before they are clipped."""
        model = self.model(start).train()
        optimiser = torch.optim.SGD(
            model.parameters(),
            lr=self["learning-rate"],
            momentum=self["momentum"],
            weight_decay=self["weight-decay"],
        )
        losses = []
        for rows in self.batches(t, k):
            optimiser.zero_grad()
            found = loss(model, self.x[rows], self.y[rows])
            found.objective.backward()
            correct(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), self["clip-norm"])
            optimiser.step()
            losses += [found.cross_entropy.item()] * len(rows)
        steps = sum(1 for _ in self.batches(t, k))
        return Trained(model, steps, sum(losses) / len(losses))


def cross_entropy(model: SplitModel, x: Tensor, y: Tensor) -> Loss:
    """CE of the batch: FedAvg's loss."""
    value = F.cross_entropy(model(x), y)
    return Loss(value, value)
