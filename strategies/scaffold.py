"""SCAFFOLD (Karimireddy et al., arXiv 1910.06378), server half: the global control variate."""

from typing import Any

import numpy as np
from flwr.common import FitRes
from pydantic.dataclasses import dataclass

from fedsyn_flwr.config import SETTINGS, Positive
from fedsyn_flwr.messages.payload import Group, Groups
from fedsyn_flwr.models.flat_model import Vectors
from fedsyn_flwr.server.server_optimizer import Optimizer
from strategies.fedavg import FedAvg


@dataclass(frozen=True, config=SETTINGS)
class ScaffoldParams:
    """SCAFFOLD's key.

    ``scaffold_server_lr`` is η_g: 1, as the paper's experiments have it, makes the new model the
    average; above √|S| is not covered by its theory.
    """

    scaffold_server_lr: Positive


class Scaffold(FedAvg):
    """Algorithm 1 of SCAFFOLD, the server's lines.

    c ← c + (|S|/K)·mean Δc_i = c + Σ Δc_i / K, so c is the mean of all clients' controls: those
    never sampled still have zero. The mean of the models is weighted as in FedAvg, the sum of the
    controls is not. c travels in a group of its own and is counted like the model.
    """

    control: Group | None = None

    def outgoing(self, partition: int) -> Groups:
        """c, the same for everyone."""
        if self.control is None:
            self.control = {"c": np.zeros_like(self.model["trainable"])}
        return {**super().outgoing(partition), "control": self.control}

    def clear(self) -> None:
        """Also forget the controls of an attempt that failed."""
        super().clear()
        self.change = np.zeros(self.model["trainable"].shape, np.float64)

    def absorb(self, result: FitRes, groups: Groups) -> None:
        """Add the client's Δc_i."""
        super().absorb(result, groups)
        self.change += groups["control"]["delta"]

    def server_step(self, mean: Vectors) -> Vectors:
        """Move c, and the model by η_g times its mean update."""
        assert self.control is not None  # a round has been sent out
        c = self.control["c"] + self.change / len(self.roster)
        self.control = {"c": c.astype(np.float32)}
        scaled = Optimizer("avgm", self.params.scaffold_server_lr, beta1=0, beta2=0, tau=1)
        w, _ = scaled.step(self.model["trainable"], mean["trainable"], {})
        return super().server_step({**mean, "trainable": w})

    def state(self) -> tuple[Group, dict[str, Any]]:
        """c, once there is one."""
        arrays, scalars = super().state()
        kept = {"control": self.control["c"]} if self.control else {}
        return {**arrays, **kept}, scalars

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """c as it was."""
        super().restore(arrays, scalars)
        self.control = {"c": arrays["control"]} if "control" in arrays else None
