"""What a round is reported as: counts, seconds, costs and failures."""

from collections.abc import Mapping

from flwr.common import Scalar

from fedsyn_flwr.compute import cost_meter
from fedsyn_flwr.server.metric_means import MetricMeans

Metrics = dict[str, Scalar]


class RoundRecord:
    """The books of one round after the other.

    Attributes
    ----------
    metrics : dict
        The round's metrics so far.
    costs : MetricMeans
        What clients measured about their own work.
    reasons : list of str
        Why clients were left out of this round.
    failed : set of int
        Which.
    """

    def __init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Empty books for a new round; another attempt at a round goes on in the same."""
        self.metrics: Metrics = {"bytes/down": 0, "bytes/up": 0, "clients/failed": 0}
        self.costs = MetricMeans(*cost_meter.PREFIXES)
        self.reasons: list[str] = []
        self.failed: set[int] = set()

    def add(self, metrics: Mapping[str, Scalar]) -> None:
        """Enter what some part has measured."""
        self.metrics |= metrics

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of the round's counts."""
        self.metrics[name] = int(self.metrics.get(name, 0)) + amount

    def spend(self, phase: str, seconds: float) -> None:
        """Add to a phase's seconds."""
        key = f"seconds/{phase}"
        self.metrics[key] = float(self.metrics.get(key, 0)) + seconds

    def fail(self, partition: int, reason: str) -> None:
        """Leave a client out of the round, and keep the reason for the log."""
        self.count("clients/failed")
        self.reasons.append(f"client {partition}: {reason}")
        self.failed.add(partition)

    def reject(self, partition: int, reason: str) -> None:
        """Fail a client that did answer, but with something unusable."""
        self.count("clients/rejected")
        self.fail(partition, reason)

    def close(self) -> None:
        """Enter the means of what clients measured, and the server's memory."""
        self.add(self.costs.means())
        self.add({f"memory/server_{k}": v for k, v in cost_meter.peak_memory().items()})
