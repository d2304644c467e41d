"""The words of a message beside its arrays: what a client is to do, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.common import Scalar

# An answer's words: the client, the phase; whether state was saved, and whether that of the round
# asked for was not there.
PARTITION, PHASE = "partition-id", "phase"
SAVED, LOST = "state-saved", "state-lost"
TRAIN_LOSS = "train-loss"


@dataclass(frozen=True)
class Instruction:
    """What the server says with a message.

    Attributes
    ----------
    run : str
        Names the run's state on the nodes.
    number : int
        The round, from 1.
    phase : str
        ``train``, or a phase of the method's own.
    settled : int
        The last round that will never be repeated; 0 for none.
    pool : int
        The round that made the synthetic pool; 0 without one.
    partition : int
        The client; a node with data of its own learns its place from this.
    last, last_settled : int
        The last round in which the server counted this client's answer, and the same of the last
        settled round; 0 for none.
    measure : bool
        Whether the client is to test its own model after local training.
    """

    run: str
    number: int
    phase: str
    settled: int = 0
    pool: int = 0
    partition: int = 0
    last: int = 0
    last_settled: int = 0
    measure: bool = False

    @property
    def occasion(self) -> tuple[str, int, str]:
        """What all clients that are asked at the same time have in common."""
        return self.run, self.number, self.phase

    def config(self) -> dict[str, Scalar]:
        """As it travels, in Flower's ``config``."""
        return {
            "run": self.run,
            "round": self.number,
            "phase": self.phase,
            "settled": self.settled,
            "pool": self.pool,
            "partition": self.partition,
            "last": self.last,
            "last-settled": self.last_settled,
            **({"measure": True} if self.measure else {}),
        }

    @classmethod
    def read(cls, config: Mapping[str, Scalar]) -> Instruction:
        """What `config` gave."""
        return cls(
            run=str(config["run"]),
            number=int(config["round"]),
            phase=str(config["phase"]),
            settled=int(config["settled"]),
            pool=int(config["pool"]),
            partition=int(config["partition"]),
            last=int(config["last"]),
            last_settled=int(config["last-settled"]),
            measure=bool(config.get("measure", False)),
        )
