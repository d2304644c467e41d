"""SCAFFOLD (Karimireddy et al., arXiv 1910.06378), server half: the global control variate."""

from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass

from fedsyn_flwr.config import SETTINGS, Positive
from fedsyn_flwr.messages.payload import Group, Groups
from fedsyn_flwr.messages.schema import Array, Schema
from fedsyn_flwr.models.flat_model import Vectors
from fedsyn_flwr.server.parts import Parts
from fedsyn_flwr.server.server_optimizer import Optimizer
from fedsyn_flwr.server.strategy import FedStrategy
from fedsyn_flwr.server.update import Update

LARGEST = 1e6  # Δc_i over 1 + ‖c‖: controls are means of gradients


@dataclass(frozen=True, config=SETTINGS)
class ScaffoldParams:
    """SCAFFOLD's key.

    ``scaffold_server_lr`` is η_g: 1, as the paper's experiments have it, makes the new model the
    average; above √|S| is not covered by its theory.
    """

    scaffold_server_lr: Positive


class Scaffold(FedStrategy):
    """Algorithm 1 of SCAFFOLD, the server's lines.

    c ← c + (|S|/K)·mean Δc_i = c + Σ Δc_i / K, so c is the mean of all clients' controls: those
    never sampled still have zero. The mean of the models is weighted as in FedAvg, the sum of the
    controls is not. c travels in a group of its own and is counted like the model.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.control: Group = {"c": np.zeros_like(self.model["trainable"])}

    def begin_attempt(self) -> None:
        """Σ Δc_i = 0."""
        self.change = np.zeros(self.model["trainable"].shape, np.float64)

    def outgoing(self, phase: str, partition: int) -> Groups:
        """c, the same for everyone."""
        return {"control": self.control}

    def expected(self, phase: str) -> Schema:
        """Δc_i."""
        return {"control": {"delta": Array.like(self.control["c"], growth=LARGEST)}}

    def fold(self, update: Update) -> None:
        """Σ Δc_i."""
        self.change += update.groups["control"]["delta"]

    def server_step(self, mean: Vectors) -> Vectors:
        """c ← c + Σ Δc_i / K; w ← w + η_g·(mean - w)."""
        c = self.control["c"] + self.change / len(self.roster)
        self.control = {"c": c.astype(np.float32)}
        scaled = Optimizer("avgm", self.params.scaffold_server_lr, beta1=0, beta2=0, tau=1)
        w, _ = scaled.step(self.model["trainable"], mean["trainable"], {})
        return super().server_step({**mean, "trainable": w})

    def state(self) -> tuple[Group, dict[str, Any]]:
        """c."""
        return {"control": self.control["c"]}, {}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """c as it was; zero in a checkpoint from before its first step."""
        if "control" in arrays:
            self.control = {"c": arrays["control"]}
