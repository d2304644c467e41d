"""Where a method plugs in on the server, in the order in which a run calls it; empty here.

`FedStrategy` has two more between `fold` and `after_round`, `server_step` and `refine`, which do
something in every method. docs/architecture.md has both sides' hooks in one table.
"""

from __future__ import annotations

from typing import Any

from fedsyn_flwr.messages.payload import Group, Groups
from fedsyn_flwr.messages.schema import Schema
from fedsyn_flwr.server.update import Update


class ServerHooks:
    """A method overrides those that its paper needs.

    Attributes
    ----------
    server_optimizer, refinement : str
        Those that the method is named after; empty where the keys decide.
    makes_pool, soft_labels : bool
        Whether clients share images, and whether with shares of classes as labels.
    """

    server_optimizer = ""
    refinement = ""
    makes_pool = False
    soft_labels = False

    def prepare(self) -> None:
        """Before round 1's training, with all clients known; counted as part of that round."""

    def before_fit(self, server_round: int) -> None:
        """Before a round's training, e.g. a synthesis by all clients."""

    def begin_attempt(self) -> None:
        """Before an attempt at a round's training: empty the method's own sums."""

    def outgoing(self, phase: str, partition: int) -> Groups:
        """Groups that this client gets beside the model and the pool; the same objects where
        shared, so that they are serialised once.
        """
        return {}

    def expected(self, phase: str) -> Schema:
        """What an answer to this phase holds beside the model, which ``train`` alone returns."""
        return {}

    def fold(self, update: Update) -> None:
        """Take what the method asked for out of a trained client's answer."""

    def after_round(self, server_round: int) -> None:
        """After a round in which something was trained, with the new model in place."""

    def state(self) -> tuple[Group, dict[str, Any]]:
        """What the method itself keeps between rounds, for checkpoints: arrays and JSON values."""
        return {}, {}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave."""
