"""A client's answer once it is open and sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.common import Scalar

from fedsyn_flwr.config import FederationConfig
from fedsyn_flwr.messages.payload import Groups


@dataclass(frozen=True)
class Update:
    """What a client sent.

    Attributes
    ----------
    partition : int
        Which client.
    groups : dict
        Its arrays by group; ``model`` after training, others as the method asks.
    examples : int
        Its samples, n_k.
    metrics : mapping
        What it says of its work.
    """

    partition: int
    groups: Groups
    examples: int
    metrics: Mapping[str, Scalar]


def is_enough(answered: int, asked: int, federation: FederationConfig) -> bool:
    """Whether so many answers are ``min-success-fraction`` of those asked for, and one at least."""
    return answered >= max(1, federation.min_success_fraction * asked)
