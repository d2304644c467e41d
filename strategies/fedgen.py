"""FedGen (Zhu et al., arXiv 2105.10056), server half: the classifiers teach a generator."""

from typing import Any

import numpy as np
import torch
from flwr.common import FitRes, Parameters

from fedsyn_flwr.compute.process import cpu_threads
from fedsyn_flwr.config import Config
from fedsyn_flwr.messages.payload import Group, Groups, is_finite
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import derive, torch_generator
from fedsyn_flwr.server.evaluation import Evaluator
from fedsyn_flwr.server.round_record import Metrics
from fedsyn_flwr.synthesis.generator import (
    Head,
    Teaching,
    all_heads,
    build_generator,
    teacher_weights,
)
from strategies.fedavg import FedAvg

PREFIX = "generator-"


class FedGen(FedAvg):
    """Algorithm 1 of FedGen, the server's lines.

    The models are averaged as in FedAvg. Of each reply the classifier and the label counts are
    kept for the round; at its end they teach the generator, which goes to the next round's
    clients in a group of its own.
    """

    generator: Group | None = None

    def __init__(self, config: Config, flat: FlatModel, evaluator: Evaluator, run: str) -> None:
        super().__init__(config, flat, evaluator, run)
        self.device = flat.trainable.device
        generator = build_generator(
            flat.module.num_classes,
            self.params.fedgen_noise,
            self.params.fedgen_hidden,
            flat.module.feature_dim,
            seed=derive(self.federation.seed, "generator"),
            device=self.device,
        )
        self.teaching = Teaching(generator, self.params.teaching())

    def outgoing(self, partition: int) -> Groups:
        """The generator, the same for everyone, once it has been taught."""
        groups = super().outgoing(partition)
        return groups if self.generator is None else {**groups, "generator": self.generator}

    def clear(self) -> None:
        """Also forget the teachers of an attempt that failed."""
        super().clear()
        self.heads: list[Head] = []
        self.counts: list[np.ndarray] = []

    def problem_with(self, groups: Groups) -> str:
        """An answer without the counts that weigh its classifier cannot be used either."""
        counts = groups.get("labels", {}).get("counts", np.zeros(0))
        fit = counts.shape == (self.flat.module.num_classes,) and (counts >= 0).all()
        return super().problem_with(groups) or ("" if fit else "its label counts are missing")

    def absorb(self, result: FitRes, groups: Groups) -> None:
        """Keep the classifier of the reply, unless nothing was trained."""
        super().absorb(result, groups)
        if self.weight_of(result) > 0:
            head = self.flat.part("classifier.", groups["model"])
            self.heads.append({name: tensor.to(self.device) for name, tensor in head.items()})
            self.counts.append(groups["labels"]["counts"])

    def finalise(self, server_round: int) -> tuple[Parameters | None, Metrics]:
        """The average, and the generator that its parts teach."""
        answer = super().finalise(server_round)
        if self.heads:
            self.teach(server_round)
        return answer

    def teach(self, server_round: int) -> None:
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
            self.metrics |= {f"generator/{name}": v for name, v in taught._asdict().items()}
        else:
            self.teaching.restore(before)
            self.count("generator/diverged", 1)

    def state(self) -> tuple[Group, dict[str, Any]]:
        """The generator with its optimiser, once it has been taught."""
        arrays, scalars = super().state()
        own = self.teaching.state() if self.generator else {}
        return {**arrays, **{f"{PREFIX}{name}": array for name, array in own.items()}}, scalars

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """The generator as it was."""
        super().restore(arrays, scalars)
        own = {k.removeprefix(PREFIX): v for k, v in arrays.items() if k.startswith(PREFIX)}
        if own:
            self.teaching.restore(own)
            self.generator = self.teaching.group()
