"""The average of models that arrive one by one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.flat import Vectors

PIECE = 1 << 14  # of a vector at a time: what it takes stays in the processor's cache
TOGETHER = 4  # models: their sum is read and written once for all of them


class RunningAverage:
    """Σ p_k w_k / Σ p_k of model vectors, some at a time.

    Sums are float64, so that the average of one model is that model bit for bit; the result has
    the vectors' own types. Counters are not averaged but taken as the maximum.

    Attributes
    ----------
    weight : float
        Σ p_k.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.sums: Vectors = {}
        self.waiting: list[tuple[Vectors, float]] = []

    def add(self, vectors: Vectors, weight: float) -> None:
        """Add a model with weight p_k > 0; it is kept until its turn, and must not change."""
        self.waiting.append((vectors, weight))
        self.weight += weight
        if len(self.waiting) == TOGETHER:
            self.sum_up()

    def sum_up(self) -> None:
        """Take the models that wait into the sums, in the order in which they came."""
        models, weights = [m for m, _ in self.waiting], [p for _, p in self.waiting]
        self.waiting = []
        if not self.sums:
            self.sums = {
                "trainable": np.zeros(models[0]["trainable"].shape, np.float64),
                "buffers": np.zeros(models[0]["buffers"].shape, np.float64),
                "counters": models[0]["counters"].copy(),
            }
        for kind in ("trainable", "buffers"):
            add_scaled(self.sums[kind], [model[kind] for model in models], weights)
        for model in models:
            np.maximum(self.sums["counters"], model["counters"], out=self.sums["counters"])

    def mean(self) -> Vectors:
        """The average, float32 and int64, of at least one model."""
        if self.waiting:
            self.sum_up()
        mean = {kind: divided(self.sums[kind], self.weight) for kind in ("trainable", "buffers")}
        return {**mean, "counters": self.sums["counters"]}


def add_scaled(
    sums: NDArray[np.float64], vectors: Sequence[NDArray[np.float32]], weights: Sequence[float]
) -> None:
    """``sums += Σ weight · vector`` in float64, one vector after the other.

    It takes no more memory than a piece of them.
    """
    product = np.empty(min(PIECE, len(sums)))
    for start in range(0, len(sums), PIECE):
        total = sums[start : start + PIECE]
        scaled = product[: len(total)]
        for vector, weight in zip(vectors, weights, strict=True):
            scaled[:] = vector[start : start + PIECE]
            scaled *= weight
            total += scaled


def divided(sums: NDArray[np.float64], weight: float) -> NDArray[np.float32]:
    """``sums / weight``, divided in float64 and then rounded, piece by piece."""
    mean = np.empty(sums.shape, np.float32)
    for start in range(0, len(sums), PIECE):
        mean[start : start + PIECE] = sums[start : start + PIECE] / weight
    return mean
