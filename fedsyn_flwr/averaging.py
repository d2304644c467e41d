"""The average of models that arrive one by one."""

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.flat import Vectors

PIECE = 1 << 14  # of a vector at a time: what it takes stays in the processor's cache


class RunningAverage:
    """Σ p_k w_k / Σ p_k of model vectors, one at a time.

    Sums are float64, so that the average of one model is that model bit for bit; the result has
    the vectors' own types. Counters are not averaged but taken as the maximum.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.sums: Vectors = {}

    def add(self, vectors: Vectors, weight: float) -> None:
        """Add a model with weight p_k > 0."""
        if not self.sums:
            self.sums = {
                "trainable": np.zeros(vectors["trainable"].shape, np.float64),
                "buffers": np.zeros(vectors["buffers"].shape, np.float64),
                "counters": vectors["counters"].copy(),
            }
        for kind in ("trainable", "buffers"):
            add_scaled(self.sums[kind], vectors[kind], weight)
        np.maximum(self.sums["counters"], vectors["counters"], out=self.sums["counters"])
        self.weight += weight

    def mean(self) -> Vectors:
        """The average, float32 and int64."""
        mean: Vectors = {
            kind: (self.sums[kind] / self.weight).astype(np.float32)
            for kind in ("trainable", "buffers")
        }
        return {**mean, "counters": self.sums["counters"]}


def add_scaled(sums: NDArray[np.float64], vector: NDArray[np.float32], weight: float) -> None:
    """``sums += weight · vector`` in float64, with no more memory than a piece of it."""
    product = np.empty(min(PIECE, len(vector)))
    for start in range(0, len(vector), PIECE):
        piece = vector[start : start + PIECE]
        scaled = np.multiply(piece, weight, out=product[: len(piece)], dtype=np.float64)
        sums[start : start + PIECE] += scaled
