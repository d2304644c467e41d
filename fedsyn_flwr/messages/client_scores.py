"""What a client found out about a model on its own test images, as it travels: counts by class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.common import Scalar
from numpy.typing import NDArray

from fedsyn_flwr.errors import UserError

TEST_LOSS, RIGHT, SEEN = "test-loss", "test-right", "test-seen"
MOST = 2**40


@dataclass(frozen=True)
class Scores:
    """One model on one client's test images.

    Attributes
    ----------
    loss : float
        Mean cross-entropy in nats; 0 without an image.
    right, seen : int64 (C,)
        Images of each class that the model got right, and all of them.
    """

    loss: float
    right: NDArray[np.int64]
    seen: NDArray[np.int64]

    @property
    def examples(self) -> int:
        """All test images."""
        return int(self.seen.sum())

    @property
    def accuracy(self) -> float:
        """In [0, 1]; there must be an image."""
        return int(self.right.sum()) / self.examples

    def words(self) -> dict[str, Scalar]:
        """As they travel, beside an answer's other words."""
        right, seen = (counts.astype("<i8").tobytes() for counts in (self.right, self.seen))
        return {TEST_LOSS: self.loss, RIGHT: right, SEEN: seen}

    @classmethod
    def read(cls, words: Mapping[str, Scalar], classes: int) -> Scores:
        """What `words` gave.

        Raises
        ------
        UserError
            If it is not a possible outcome of a test with so many classes.
        """
        loss = words.get(TEST_LOSS)
        if type(loss) not in (int, float) or not 0 <= cast(float, loss) < math.inf:
            raise UserError(f"its {TEST_LOSS} is {loss!r}, expected a finite number of at least 0")
        right, seen = (_counts(words, name, classes) for name in (RIGHT, SEEN))
        if (right > seen).any():
            raise UserError("its test has more right answers than images")
        return cls(cast(float, loss), right, seen)


def _counts(words: Mapping[str, Scalar], name: str, classes: int) -> NDArray[np.int64]:
    raw = words.get(name)
    if not isinstance(raw, bytes) or len(raw) != 8 * classes:
        raise UserError(f"its {name} is not {classes} numbers")
    counts = np.frombuffer(raw, "<i8").astype(np.int64)
    if counts.min() < 0 or counts.max() > MOST:
        raise UserError(f"its {name} has counts from {counts.min()} to {counts.max()}")
    return counts
