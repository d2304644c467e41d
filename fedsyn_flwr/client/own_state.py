"""What a method keeps of one client from round to round."""

from __future__ import annotations

from flwr.common import Scalar

from fedsyn_flwr.client.state import VersionedStore
from fedsyn_flwr.messages.instruction import LOST, SAVED, Instruction
from fedsyn_flwr.messages.payload import Group, is_finite


class OwnState:
    """A client's arrays, by the round that saved them.

    Parameters
    ----------
    store : VersionedStore
        This client's versions on this node.
    round : Instruction
        Which round it is, and which version the server counted.

    Attributes
    ----------
    said : dict
        What the server is told: whether something was saved, or lost.
    """

    def __init__(self, store: VersionedStore, round: Instruction) -> None:
        self.store, self.round = store, round
        self.said: dict[str, Scalar] = {}

    def load(self) -> Group | None:
        """What was saved in the last round in which the server counted this client's answer.

        So a repeated round (a retry, a resumed run) sees what it saw the first time. What is not
        here any more is what was saved before that, or nothing, and the server is told.
        """
        version = self.store.newest(self.round.last)
        self.said[LOST] = version != self.round.last
        return self.store.load(version) if version else None

    def save(self, arrays: Group) -> None:
        """Keep arrays for this client's next round, unless training has diverged.

        The server rejects a model with NaN; a state with NaN would make the client send such
        models for ever. Earlier states are kept as long as a repeated round may ask for them.
        """
        if is_finite(arrays):
            now = self.round
            self.store.save(now.number, arrays)
            self.store.keep((now.last_settled, now.last, now.number))
            self.said[SAVED] = True
