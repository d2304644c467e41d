"""What an answer must hold, said beforehand, so that whatever else comes is refused at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import Group, Groups


@dataclass(frozen=True)
class Array:
    """An array's kind.

    Attributes
    ----------
    dtype : str
        NumPy's name of it, e.g. ``float32``.
    shape : tuple
        Lengths; None stands for any.
    low : float
        The least value allowed.
    norm : float
        The largest Euclidean norm allowed.
    """

    dtype: str
    shape: tuple[int | None, ...]
    low: float = -math.inf
    norm: float = math.inf

    @classmethod
    def like(cls, array: np.ndarray, growth: float = math.inf) -> Array:
        """The kind of an array there is; its norm may grow to ``growth`` · (1 + ‖array‖)."""
        norm = math.inf if growth == math.inf else growth * (1 + norm_of(array))
        return cls(array.dtype.name, array.shape, norm=norm)

    def problem(self, array: np.ndarray) -> str:
        """Why an array is not of this kind; empty if it is."""
        wanted = ", ".join("n" if length is None else str(length) for length in self.shape)
        fits = len(array.shape) == len(self.shape) and all(
            length in (None, found) for length, found in zip(self.shape, array.shape, strict=True)
        )
        if array.dtype != self.dtype or not fits:
            return f"is {array.dtype} {array.shape}, expected {self.dtype} ({wanted})"
        if self.low > -math.inf and array.size and not array.min() >= self.low:
            return f"has values down to {array.min()}, expected {self.low} at least"
        size = norm_of(array)
        if not math.isfinite(size) and not np.isfinite(array).all():
            return "has NaN or infinite values"
        if not size <= self.norm:
            return f"has norm {size:.3g}, expected {self.norm:.3g} at most: it has exploded"
        return ""


def norm_of(array: np.ndarray) -> float:
    """‖array‖ by BLAS, at the speed of memory; inf where its square overflows float32."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(square) if (square := float(np.dot(flat, flat))) >= 0 else math.nan


Schema = Mapping[str, Mapping[str, Array] | None]
"""Group → array → its kind: all that an answer may hold. None leaves a group to its receiver."""


GROWTH = {"trainable": 1e3, "buffers": 1e6}
"""How much a model's vectors may grow in a round. No sound training comes near it, and what is
larger would make NaN of everybody's next round; running statistics of raw features start at 1."""


def like(groups: Mapping[str, Group]) -> dict[str, dict[str, Array]]:
    """The schema of models that are trained from these."""
    return {
        name: {k: Array.like(array, GROWTH.get(k, math.inf)) for k, array in group.items()}
        for name, group in groups.items()
    }


def check(groups: Groups, expected: Schema) -> None:
    """Refuse groups that are not exactly as expected, or hold NaN or infinite values.

    Raises
    ------
    UserError
        Naming the group, the array, and what is wrong with it.
    """
    for name in [*expected, *groups]:
        if name not in groups:
            raise UserError(f"its answer holds no {name}")
        if name not in expected:
            raise UserError(f"its answer holds {name}, which nobody asked for")
        if (kinds := expected[name]) is not None:
            check_group(name, groups[name], kinds)


def check_group(name: str, group: Group, expected: Mapping[str, Array]) -> None:
    """The same of one group."""
    if group.keys() != expected.keys():
        raise UserError(f"its {name} holds {sorted(group)}, expected {sorted(expected)}")
    for key, kind in expected.items():
        if problem := kind.problem(group[key]):
            raise UserError(f"its {name}: {key} {problem}")
