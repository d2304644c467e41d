"""Which state clients go on from: that of the last round in which their answer was counted.

A client saves its state when it has trained, before the server has its answer. The answer may be
lost, late, refused, or belong to an attempt that is repeated with other clients; then the server
has nothing of it, and the client must not go on from it either (SCAFFOLD's c would not be the mean
of the c_i any more). So the server remembers whose answer it counted when, and tells the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.common import Scalar, log

from fedsyn_flwr.messages.instruction import LOST, SAVED
from fedsyn_flwr.messages.payload import Group


class ClientVersions:
    """The rounds by partition.

    Attributes
    ----------
    settled : int
        The last round that will never be repeated.
    """

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.last_settled: dict[int, int] = {}
        self.settled = 0
        self.warned = False
        self.open()

    def open(self) -> None:
        """An attempt at a round begins; what another one took in is forgotten."""
        self.taken: set[int] = set()

    def take(self, partition: int, metrics: Mapping[str, Scalar]) -> bool:
        """Note an answer that was counted; returns whether its client had lost what it kept."""
        if metrics.get(SAVED):
            self.taken.add(partition)
        lost = bool(metrics.get(LOST))
        if lost and not self.warned:
            self.warned = True
            log(
                WARNING,
                "client %s has lost what it kept since round %s, and goes on without (clients/"
                "state_lost counts such cases): is its state-dir gone, or another than before?",
                partition,
                self.last.get(partition, 0),
            )
        return lost

    def close(self, server_round: int) -> None:
        """The round counts."""
        self.last |= dict.fromkeys(self.taken, server_round)
        self.open()

    def settle(self, server_round: int) -> None:
        """What was counted up to this round will not be repeated."""
        self.settled = server_round
        self.last_settled = dict(self.last)

    def of(self, partition: int) -> dict[str, int]:
        """A client's two rounds, for its instruction."""
        return {
            "last": self.last.get(partition, 0),
            "last_settled": self.last_settled.get(partition, 0),
        }

    def state(self) -> tuple[Group, dict[str, Any]]:
        """For checkpoints."""
        return {}, {"counted": {str(partition): number for partition, number in self.last.items()}}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.last = {int(partition): number for partition, number in scalars["counted"].items()}
