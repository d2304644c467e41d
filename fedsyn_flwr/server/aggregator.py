"""What a round sums over its clients: their models, how far these moved, their losses."""

from __future__ import annotations

from typing import Literal

from fedsyn_flwr.models.flat_model import Vectors
from fedsyn_flwr.server.averaging import RunningAverage
from fedsyn_flwr.server.drift import Drift


class Aggregator:
    """Σ p_k w_k / Σ p_k and what is measured beside it, one model at a time.

    Memory: one model and one sum, whatever the number of clients.

    Parameters
    ----------
    weighting : str
        ``examples``, p_k ~ n_k, or ``uniform``.
    """

    def __init__(self, weighting: Literal["examples", "uniform"]) -> None:
        self.uniform = weighting == "uniform"
        self.drift: Drift | None = None
        self.open()

    def open(self, expected: int = 0, origin: Vectors | None = None) -> None:
        """Empty sums.

        Parameters
        ----------
        expected : int
            How many models there will be, where that is known.
        origin : dict, optional
            w_t, where the drift from it is to be measured.
        """
        self.average = RunningAverage(expected=expected)
        self.drift = Drift(origin["trainable"]) if origin is not None else None
        self.losses: list[tuple[float, int]] = []

    def weight(self, examples: int) -> float:
        """p_k before division: the client's samples, or 1 where it has any and all weigh alike."""
        return float(bool(examples)) if self.uniform else float(examples)

    def add(self, model: Vectors, examples: int, loss: float) -> None:
        """Take in a model trained on so many samples (at least one), with its mean loss."""
        weight = self.weight(examples)
        self.average.add(model, weight)
        if self.drift:
            self.drift.add(model["trainable"], weight)
        self.losses.append((loss, examples))

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self.losses

    def mean(self) -> Vectors:
        """The average model, of at least one."""
        return self.average.mean()

    def metrics(self, mean: Vectors) -> dict[str, float]:
        """What the round's clients have in common, given their average."""
        total = sum(n for _, n in self.losses)
        loss = sum(loss * n for loss, n in self.losses) / total
        drift = self.drift.metrics(mean["trainable"]) if self.drift else {}
        return {**drift, "clients/train_loss": loss}
