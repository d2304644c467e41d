"""What a round sums over its clients: their models, how far these moved, their losses."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import floor, inf
from typing import Literal

from fedsyn_flwr.models.flat_model import Vectors
from fedsyn_flwr.server.averaging import RunningAverage
from fedsyn_flwr.server.drift import Drift


def capped(heaviest: Sequence[float], rest: float, share: float) -> float:
    """The largest weight with which no client's share is above ``share``.

    T = c·Σ min(p_k, T): of the j heaviest with p_k > T, T = c·rest_j / (1 - c·j). Where so few
    clients took part that all of them together cannot be within it, all weigh as the lightest.

    Parameters
    ----------
    heaviest : sequence of float
        The p_k that may be above it, at least ⌊1/c⌋ of them where there are so many.
    rest : float
        Σ p_k of the others.
    share : float
        c in (0, 1].
    """
    ordered = sorted(heaviest, reverse=True)
    for j, weight in enumerate(ordered):
        others = rest + sum(ordered[j:])
        limit = share * others / (1 - share * j) if share * j < 1 else inf
        if weight <= limit:
            return limit
    left = 1 - share * len(ordered)
    return share * rest / left if rest and left > 0 else min(ordered, default=inf)


class Aggregator:
    """Σ p_k w_k / Σ p_k and what is measured beside it, one model at a time.

    Memory: one model and one sum, whatever the number of clients.

    Parameters
    ----------
    weighting : str
        ``examples``, p_k ~ n_k, or ``uniform``.
    max_share : float
        c: no client's share of Σ p_k is above it; 1 is no limit. With less, the ⌊1/c⌋ models that
        weigh most are kept until the end of the round, since nobody else can be above c.
    """

    def __init__(self, weighting: Literal["examples", "uniform"], max_share: float = 1.0) -> None:
        self.uniform = weighting == "uniform"
        self.max_share, self.kept = max_share, floor(1 / max_share) if max_share < 1 else 0
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
        self.heaviest: list[tuple[float, int, Vectors]] = []

    def weight(self, examples: int) -> float:
        """p_k before division: the client's samples, or 1 where it has any and all weigh alike."""
        return float(bool(examples)) if self.uniform else float(examples)

    def add(self, model: Vectors, examples: int, loss: float) -> None:
        """Take in a model trained on so many samples (at least one), with its mean loss."""
        self.losses.append((loss, examples))
        weight = self.weight(examples)
        if not self.kept:
            self.sum_up(model, weight)
            return
        own = {kind: vector.copy() for kind, vector in model.items()}
        heappush(self.heaviest, (weight, -len(self.losses), own))
        if len(self.heaviest) > self.kept:
            lightest = heappop(self.heaviest)
            self.sum_up(lightest[2], lightest[0])

    def sum_up(self, model: Vectors, weight: float) -> None:
        """Add a model with the weight it has."""
        self.average.add(model, weight)
        if self.drift:
            self.drift.add(model["trainable"], weight)

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self.losses

    def mean(self) -> Vectors:
        """The average model, of at least one."""
        limit = capped([p for p, _, _ in self.heaviest], self.average.weight, self.max_share)
        for weight, _, model in sorted(self.heaviest, key=lambda each: each[:2]):
            self.sum_up(model, min(weight, limit))
        self.heaviest = []
        return self.average.mean()

    def metrics(self, mean: Vectors) -> dict[str, float]:
        """What the round's clients have in common, given their average."""
        total = sum(n for _, n in self.losses)
        loss = sum(loss * n for loss, n in self.losses) / total
        drift = self.drift.metrics(mean["trainable"]) if self.drift else {}
        return {**drift, "clients/train_loss": loss}
