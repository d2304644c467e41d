"""The average of models that arrive one by one."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.models.flat_model import Vectors

PIECE = 1 << 18  # of a vector at a time: what it takes stays in the processor's cache
TOGETHER = 4  # models: their sum is read and written once for all of them
LAST = 2  # models before the last: they are added as they come, since a round ends with them


class RunningAverage:
    """Σ p_k w_k / Σ p_k of model vectors, some at a time.

    Sums are float64, so that the average of one model is that model bit for bit; the result has
    the vectors' own types. Counters are not averaged but taken as the maximum.

    Parameters
    ----------
    expected : int, optional
        How many models there will be, where that is known.

    Attributes
    ----------
    weight : float
        Σ p_k.
    """

    def __init__(self, expected: int = 0) -> None:
        self.missing = expected
        self.weight = 0.0
        self.sums: Vectors = {}
        self.waiting: list[tuple[Vectors, float]] = []

    def add(self, vectors: Vectors, weight: float) -> None:
        """Add a model with weight p_k > 0; it is kept until its turn, and must not change."""
        self.waiting.append((vectors, weight))
        self.weight += weight
        self.missing -= 1
        if len(self.waiting) == TOGETHER or 0 < self.missing <= LAST:
            self.sum_up()

    def sum_up(self, mean: Vectors | None = None) -> None:
        """Take the models that wait into the sums, in the order in which they came.

        And the sums, divided by the weight, into ``mean``, where it is given.
        """
        models, weights = [m for m, _ in self.waiting], [p for _, p in self.waiting]
        self.waiting = []
        if not self.sums:
            self.sums = {
                "trainable": np.zeros(models[0]["trainable"].shape, np.float64),
                "buffers": np.zeros(models[0]["buffers"].shape, np.float64),
                "counters": models[0]["counters"].copy(),
            }
        for kind in ("trainable", "buffers"):
            for piece, total in add_scaled(self.sums[kind], [m[kind] for m in models], weights):
                if mean is not None:
                    mean[kind][piece] = total / self.weight
        for model in models:
            np.maximum(self.sums["counters"], model["counters"], out=self.sums["counters"])

    def mean(self) -> Vectors:
        """The average, float32 and int64, of at least one model."""
        like = self.sums or self.waiting[0][0]
        mean = {kind: np.empty(like[kind].shape, np.float32) for kind in ("trainable", "buffers")}
        self.sum_up(mean)
        return {**mean, "counters": self.sums["counters"]}


def add_scaled(
    sums: NDArray[np.float64], vectors: Sequence[NDArray[np.float32]], weights: Sequence[float]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """``sums += Σ weight · vector`` in float64, one vector after the other, piece by piece.

    Yields where a piece lies and its sum, while it is in the cache; it takes no more memory than
    that.
    """
    product = np.empty(min(PIECE, len(sums)))
    for start in range(0, len(sums), PIECE):
        piece = slice(start, start + PIECE)
        total = sums[piece]
        scaled = product[: len(total)]
        for vector, weight in zip(vectors, weights, strict=True):
            scaled[:] = vector[piece]
            scaled *= weight
            total += scaled
        yield piece, total
