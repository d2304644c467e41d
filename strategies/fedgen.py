"""FedGen (Zhu et al., arXiv 2105.10056), server half: the classifiers teach a generator."""

from typing import Any

import numpy as np
import torch

from fedsyn_flwr.compute.process import cpu_threads
from fedsyn_flwr.messages.payload import Group, Groups, is_finite
from fedsyn_flwr.messages.schema import Array, Schema
from fedsyn_flwr.rng import derive, torch_generator
from fedsyn_flwr.server.parts import Parts
from fedsyn_flwr.server.strategy import FedStrategy
from fedsyn_flwr.server.update import Update
from fedsyn_flwr.synthesis.generator import (
    Head,
    Teaching,
    all_heads,
    build_generator,
    teacher_weights,
)

PREFIX = "generator-"


class FedGen(FedStrategy):
    """Algorithm 1 of FedGen, the server's lines.

    The models are averaged as in FedAvg. Of each reply the classifier and the label counts are
    kept for the round; at its end they teach the generator, which goes to the next round's
    clients in a group of its own.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.device = self.flat.trainable.device
        generator = build_generator(
            self.flat.module.num_classes,
            self.params.fedgen_noise,
            self.params.fedgen_hidden,
            self.flat.module.feature_dim,
            seed=derive(self.federation.seed, "generator"),
            device=self.device,
        )
        self.teaching = Teaching(generator, self.params.teaching())
        self.generator: Group | None = None

    def begin_attempt(self) -> None:
        """No teachers yet."""
        self.heads: list[Head] = []
        self.counts: list[np.ndarray] = []

    def outgoing(self, phase: str, partition: int) -> Groups:
        """The generator, the same for everyone, once it has been taught."""
        return {} if self.generator is None else {"generator": self.generator}

    def expected(self, phase: str) -> Schema:
        """How many samples of each class the client has."""
        return {"labels": {"counts": Array("int64", (self.flat.module.num_classes,), low=0)}}

    def fold(self, update: Update) -> None:
        """Keep the classifier of the reply, unless nothing was trained."""
        if update.examples > 0:
            head = self.flat.part("classifier.", update.groups["model"])
            self.heads.append({name: tensor.to(self.device) for name, tensor in head.items()})
            self.counts.append(update.groups["labels"]["counts"])

    def after_round(self, server_round: int) -> None:
        """A round of the generator's training, eq. (4); undone where it diverges."""
        before = self.teaching.state()
        with cpu_threads(self.config.refinement.server_threads):
            taught = self.teaching.round(
                all_heads(self.flat.module.classifier, self.heads),
                teacher_weights(torch.from_numpy(np.stack(self.counts)).to(self.device)),
                torch_generator(self.federation.seed, server_round, "generator"),
            )
        if is_finite(self.teaching.state()):
            self.generator = self.teaching.group()
            self.record.add({f"generator/{name}": v for name, v in taught._asdict().items()})
        else:
            self.teaching.restore(before)
            self.record.count("generator/diverged")

    def state(self) -> tuple[Group, dict[str, Any]]:
        """The generator with its optimiser, once it has been taught."""
        own = self.teaching.state() if self.generator else {}
        return {f"{PREFIX}{name}": array for name, array in own.items()}, {}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """The generator as it was."""
        own = {k.removeprefix(PREFIX): v for k, v in arrays.items() if k.startswith(PREFIX)}
        if own:
            self.teaching.restore(own)
            self.generator = self.teaching.group()
