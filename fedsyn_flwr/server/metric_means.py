"""What clients measured about themselves, as one number per name."""

import math
from collections.abc import Mapping

MAXIMA = ("_max", "_peak_mb")


class MetricMeans:
    """Weighted means of named numbers, added one client at a time.

    Names that end in ``_max`` or ``_peak_mb`` keep the largest value instead; what is not a
    finite number is left out.

    Parameters
    ----------
    *prefixes : str
        Which names count.
    """

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes
        self.sums: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    def add(self, metrics: Mapping[str, object], weight: float = 1.0) -> None:
        """Count one client's metrics; a weight of 0 leaves it out."""
        for name, value in metrics.items():
            wanted = weight > 0 and name.startswith(self.prefixes)
            if wanted and isinstance(value, int | float) and math.isfinite(value):
                self._add(name, float(value), weight)

    def _add(self, name: str, value: float, weight: float) -> None:
        if name.endswith(MAXIMA):
            self.sums[name] = max(self.sums.get(name, value), value)
            self.weights[name] = 1.0
        else:
            self.sums[name] = self.sums.get(name, 0.0) + weight * value
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def repeat(self, name: str, times: int) -> None:
        """Make a mean over the ``times`` messages that each client got the sum of them."""
        if name in self.sums:
            self.sums[name] *= times

    def means(self) -> dict[str, float]:
        """Every name's mean or maximum."""
        return {name: total / self.weights[name] for name, total in self.sums.items()}
