"""The client every method starts from: FedAvg's local training with places to plug in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.state import NodeState, VersionedStore
from fedsyn_flwr.client.training import Batch, LocalResult, Loss, train_local
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.compute.cost_meter import Meter
from fedsyn_flwr.compute.cuda_graphs import Passes, is_replayable, plainly, replayable
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.instruction import LAST, LAST_SETTLED, LOST, SAVED
from fedsyn_flwr.messages.payload import Group, Groups, fetched, is_finite, is_shared, pack, unpack
from fedsyn_flwr.messages.transport import PROBE, SEEN, seen
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.models.flat_model import FlatModel, Vectors
from fedsyn_flwr.privacy.dp import privatise
from fedsyn_flwr.rng import numpy_generator, torch_generator

Metrics = dict[str, Scalar]


@dataclass(frozen=True)
class Round:
    """What the server says of a message: which run, which round, what to do.

    ``settled`` is the last round that will never be repeated.
    """

    run: str
    number: int
    phase: str
    settled: int
    pool: int


class Step(NamedTuple):
    """A batch's forward pass: map (B, c, h, w), features (B, d), logits (B, C), CE (scalar)."""

    batch: Batch
    map: Tensor
    features: Tensor
    logits: Tensor
    cross_entropy: Tensor


class FedClient(NumPyClient):
    """A client of FedAvg; other methods override the step that their paper changes.

    Parameters
    ----------
    worker : Worker
        The process's resident data and model, shared with the other clients it serves.
    partition : int
        Which client this is; a node with its own data learns it from each message.

    Attributes
    ----------
    fixed : mapping
        Keys that the method is defined by, with their values, whatever the configuration says.
    """

    fixed: Mapping[str, Scalar] = {}

    def __init__(self, worker: Worker, partition: int) -> None:
        self.worker = worker
        self.partition = partition
        self.indices = worker.rows(partition)
        self.params: Any = worker.settings.params
        self.last = self.last_settled = 0
        self.about_state: Metrics = {}

    # ---- Flower's interface

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Who this is: partition and federation size, or a node's name; number of samples.

        And whether it sees the server's memory, where the server asks.
        """
        sees = {SEEN: seen(config[PROBE])} if PROBE in config else {}
        return {**self.worker.identity(self.partition), "num-examples": len(self.indices), **sees}

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Do what the message's phase asks: ``train``, or a method's own phase."""
        self.round = Round(
            run=str(config["run"]),
            number=int(config["round"]),
            phase=str(config["phase"]),
            settled=int(config["settled"]),
            pool=int(config["pool"]),
        )
        self.partition = int(config.get("partition", self.partition))
        self.last, self.last_settled = int(config[LAST]), int(config[LAST_SETTLED])
        groups = unpack(fetched(parameters), self.flat.layout)
        by_reference = is_shared(parameters)
        if "model" in groups:  # a phase may do without
            if by_reference:
                self.worker.move_in(self.round)
            self.flat.load(groups["model"])
        answer, metrics = self.phase(groups)
        metrics |= {"partition-id": self.partition, "phase": self.round.phase, **self.about_state}
        share = partial(self.worker.slots.write, message=self.round) if by_reference else None
        return pack(answer, self.flat.layout, share), len(self.indices), metrics

    def phase(self, groups: Groups) -> tuple[Groups, Metrics]:
        """Handle one message; a method with phases of its own extends this."""
        if self.round.phase == "train":
            return self.train(groups)
        raise UserError(f"phase {self.round.phase!r} is unknown to {type(self).__name__}")

    # ---- the round of local training

    def train(self, groups: Groups) -> tuple[Groups, Metrics]:
        """Local training from the received model; returns the trained one."""
        meter = self.meter("training")
        self.begin_round(groups)
        self.augmentation = self.generator("augmentation")
        result = train_local(
            self.flat,
            self.indices,
            self.fetch,
            self.loss,
            self.worker.settings.train,
            seed=self.seed,
            key=(self.round.number, self.partition),
            around=lambda batch: meter.counted(self.step_kind(), *batch.x.shape),
            observe=self.observe,
            after_backward=self.after_backward,
            after_step=self.after_step,
            passes=self.passes(),
        )
        answer, metrics = self.end_round(result)
        metrics |= {"train-loss": result.loss, **meter.metrics()}
        return {"model": self.sent(groups["model"]), **answer}, metrics

    # ---- where a method plugs in

    def begin_round(self, groups: Groups) -> None:
        """Before the first step: load own state, keep frozen copies."""

    def fetch(self, chosen: Tensor) -> Batch:
        """The batch of these samples, and whatever else is drawn for a step."""
        return self.worker.fetch(chosen, self.augmentation)

    @replayable
    def loss(self, batch: Batch) -> Loss:
        """The step's loss; a method that needs another forward pass overrides this."""
        step = self.forward(batch)
        return Loss(self.objective(step), step.cross_entropy, self.watch(step))

    @replayable
    def objective(self, step: Step) -> Tensor:
        """What is minimised, given the ordinary forward pass: plain cross-entropy."""
        return step.cross_entropy

    @replayable
    def watch(self, step: Step) -> Tensor | None:
        """What `observe` is to see of the real samples' forward pass, detached."""
        return None

    def observe(self, batch: Batch, watched: Tensor) -> None:
        """After the pass: take note of what `watch` gave."""

    def after_backward(self) -> None:
        """With the loss's gradient in ``flat.grad``, not yet clipped: corrections of it."""

    def after_step(self) -> None:
        """After every optimiser step: corrections of the weights."""

    def step_kind(self) -> Hashable:
        """What decides a step's operations besides the keys and the batch's shape.

        A process counts each kind of step once, so a method whose steps differ from round to
        round (nothing to compare with yet, no pool yet) says which these are.
        """
        return None

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """After the last step: save own state; extra groups and metrics for the server."""
        return {}, {}

    def sent(self, received: Vectors) -> Vectors:
        """The trained model as the server gets it: clipped and noisy, where the run says so."""
        key = (self.seed, self.round.number, self.partition, "privacy")
        settings, variances = self.worker.settings.privacy, self.flat.variances
        return privatise(self.flat.vectors(), received, settings, numpy_generator(*key), variances)

    # ---- tools

    def forward(self, batch: Batch) -> Step:
        """The model on a batch of real samples."""
        model = self.flat.module
        feature_map = model.forward_map(batch.x)
        features = model.neck(feature_map)
        logits = model.classifier(features)
        logits = logits.float()  # with ``amp`` the model answers in bfloat16; else nothing happens
        loss = F.cross_entropy(logits, batch.y)
        return Step(batch, feature_map.float(), features.float(), logits, loss)

    def passes(self) -> Passes:
        """How this round's steps are done: recorded where `replayable` says they may be."""
        if not is_replayable(type(self)):
            return plainly
        return self.worker.graphs.of("training", type(self), self.step_kind())

    def frozen(self, slot: int, vectors: Group) -> SplitModel:
        """A model of these vectors in eval mode without gradients; one per slot at a time."""
        spare = self.worker.spare(slot)
        spare.load(vectors)
        return spare.module

    def meter(self, phase: str) -> Meter:
        """Starts to measure a phase of this client."""
        return Meter(phase, type(self), self.flat.layout, self.params)

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers of this client in this round, for one purpose."""
        return torch_generator(self.seed, self.round.number, self.partition, purpose)

    def load_state(self) -> Group | None:
        """What this client saved in the last round in which the server counted its answer.

        So a repeated round (a retry, a resumed run) sees what it saw the first time. What is not
        here any more is what it saved before that, or nothing, and the server is told.
        """
        version = self.store.newest(self.last)
        self.about_state[LOST] = version != self.last
        return self.store.load(version) if version else None

    def save_state(self, arrays: Group) -> None:
        """Keep arrays for this client's next round, unless training has diverged.

        The server rejects a model with NaN; a state with NaN would make the client send such
        models for ever. Earlier states are kept as long as a repeated round may ask for them.
        """
        if is_finite(arrays):
            self.store.save(self.round.number, arrays)
            self.store.keep((self.last_settled, self.last, self.round.number))
            self.about_state[SAVED] = True

    @property
    def store(self) -> VersionedStore:
        """This client's versions in the run's state on this node."""
        return self.node.client(self.owner)

    @property
    def owner(self) -> int | str:
        """What this client's state is kept under."""
        return self.worker.owner(self.partition)

    @property
    def node(self) -> NodeState:
        """The run's state on this node."""
        return self.worker.state(self.round.run)

    @cached_property
    def labels(self) -> Tensor:
        """Labels of this client's samples, shape (n,)."""
        return self.worker.data.y(self.indices)

    @property
    def flat(self) -> FlatModel:
        """The resident model."""
        return self.worker.flat

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.worker.settings.federation.seed


def as_numpy(tensor: Tensor) -> np.ndarray:
    """A detached CPU copy, contiguous."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
