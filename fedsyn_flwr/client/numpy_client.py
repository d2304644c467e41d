"""The client every method starts from: FedAvg's local training with places to plug in."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.own_state import OwnState
from fedsyn_flwr.client.testing import scores
from fedsyn_flwr.client.training import Batch, LocalResult, Loss, train_local
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.compute.cost_meter import Meter
from fedsyn_flwr.compute.cuda_graphs import Passes, is_replayable, plainly, replayable
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.client_scores import Scores
from fedsyn_flwr.messages.instruction import PARTITION, PHASE, TRAIN_LOSS, Instruction
from fedsyn_flwr.messages.payload import Group, Groups, fetched, is_shared, pack, unpack
from fedsyn_flwr.messages.transport import PROBE, SEEN, seen
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.models.flat_model import FlatModel, Vectors
from fedsyn_flwr.privacy.dp import privatise
from fedsyn_flwr.rng import numpy_generator, torch_generator

Metrics = dict[str, Scalar]


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
        On the class: keys that the method is defined by, with their values, whatever the
        configuration says.
    phases : mapping
        On the class: phase → name of the method that answers it, from `Groups` to
        (`Groups`, `Metrics`).
    round : Instruction
        What the message being answered says.
    own : OwnState
        What this client keeps from round to round.
    """

    fixed: Mapping[str, Scalar] = {}
    phases: Mapping[str, str] = {"train": "train"}
    round: Instruction
    own: OwnState

    def __init__(self, worker: Worker, partition: int) -> None:
        self.worker = worker
        self.partition = partition
        self.indices = worker.rows(partition)
        self.params: Any = worker.settings.params

    # ---- where a method plugs in, in the order in which a round calls it

    def begin_round(self, groups: Groups) -> None:
        """Before the first step: load own state, keep frozen copies."""

    def fetch(self, chosen: Tensor) -> Batch:
        """The batch of these samples, and whatever else is drawn for a step."""
        return self.worker.fetch(chosen, self.augmentation)

    def step_kind(self) -> Hashable:
        """What decides a step's operations besides the keys and the batch's shape.

        A process counts each kind of step once, so a method whose steps differ from round to
        round (nothing to compare with yet, no pool yet) says which these are.
        """
        return None

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

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """After the last step: save own state; extra groups and metrics for the server."""
        return {}, {}

    # ---- a round of local training

    def train(self, groups: Groups) -> tuple[Groups, Metrics]:
        """Local training from the received model; returns the trained one."""
        meter = self.meter("training")
        self.begin_round(groups)
        self.augmentation = self.generator("augmentation")
        result = train_local(
            self.flat,
            self.indices,
            self,
            self.worker.settings.train,
            seed=self.seed,
            key=(self.round.number, self.partition),
            around=lambda batch: meter.counted(self.step_kind(), *batch.x.shape),
            passes=self.passes(),
        )
        answer, metrics = self.end_round(result)
        metrics |= {TRAIN_LOSS: result.loss, **meter.metrics()}
        return {"model": self.privatised(groups["model"]), **answer}, metrics

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

    def privatised(self, received: Vectors) -> Vectors:
        """The trained model as the server gets it: clipped and noisy, where the run says so."""
        key = (self.seed, self.round.number, self.partition, "privacy")
        settings, variances = self.worker.settings.privacy, self.flat.variances
        return privatise(self.flat.vectors(), received, settings, numpy_generator(*key), variances)

    # ---- what a method may use

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
        by_reference = is_shared(parameters)
        groups = self.receive(parameters, Instruction.read(config))
        answer, metrics = self.answer(groups)
        metrics |= {PARTITION: self.partition, PHASE: self.round.phase, **self.own.said}
        if self.round.measure:  # the model as trained: whatever is sent, noise is not in it
            metrics |= self.tested(self.flat.module).words()
        share = (
            partial(self.worker.slots.write, message=self.round.occasion) if by_reference else None
        )
        return pack(answer, self.flat.layout, share), len(self.indices), metrics

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """The received model on this client's test images: loss, how many, counts by class."""
        self.partition = Instruction.read(config).partition
        groups = unpack(fetched(parameters), self.flat.layout)
        # not the resident model, whose memory the last answer may still be read from
        found = self.tested(self.frozen(0, groups["model"]))
        return found.loss, found.examples, {PARTITION: self.partition, **found.words()}

    def tested(self, model: SplitModel) -> Scores:
        """A model on the images that this client never trains on."""
        data, indices = self.worker.held_out(self.partition)
        size = self.worker.settings.output.eval_batch_size
        return scores(model, data, indices, self.flat.module.num_classes, size)

    def receive(self, parameters: NDArrays, instruction: Instruction) -> Groups:
        """Open a message; its model, if it has one, is the resident one then."""
        self.round, self.partition = instruction, instruction.partition
        store = self.worker.state(instruction.run).client(self.worker.owner(self.partition))
        self.own = OwnState(store, instruction)
        groups = unpack(fetched(parameters), self.flat.layout)
        if "model" in groups:  # a phase may do without
            if is_shared(parameters):
                self.worker.move_in(instruction.occasion)
            self.flat.load(groups["model"])
        return groups

    def answer(self, groups: Groups) -> tuple[Groups, Metrics]:
        """What the message's phase makes of it."""
        name = self.phases.get(self.round.phase)
        if name is None:
            raise UserError(f"phase {self.round.phase!r} is unknown to {type(self).__name__}")
        answer: tuple[Groups, Metrics] = getattr(self, name)(groups)
        return answer


def as_numpy(tensor: Tensor) -> np.ndarray:
    """A detached CPU copy, contiguous."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
