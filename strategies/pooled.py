"""What the data-sharing methods have in common on the server: the clients' images in one pool."""

from logging import WARNING
from typing import Any

import torch
from flwr.common import log

from fedsyn_flwr.data import get_spec
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import Group, Groups
from fedsyn_flwr.rng import numpy_generator
from fedsyn_flwr.server.metric_means import Tally
from fedsyn_flwr.server.refinement import Images
from fedsyn_flwr.server.requests import Reply
from fedsyn_flwr.synthesis.encoding import decode, encode
from fedsyn_flwr.synthesis.pool import Pool, PoolImages, hard, problem_with
from strategies.fedavg import FedAvg


class Pooled(FedAvg):
    """FedAvg whose clients also train on images that all of them contributed.

    A method says when to `gather` them and how many one client may send (`limit`).

    Attributes
    ----------
    soft_labels : bool
        Whether the labels are shares of the classes.
    advice : tuple of str
        What else is said where too few clients take part.
    """

    pool: Group | None = None
    soft_labels = False
    advice: tuple[str, ...] = ()
    makes_pool = True

    def limit(self, reply: Reply) -> int:
        """The most images that this client may contribute."""
        raise NotImplementedError

    def gather(self, phase: str, server_round: int, with_model: bool = True) -> int:
        """All clients' answers to ``phase`` become the pool; returns how many could be used.

        Where these are fewer than ``min-success-fraction``, the old pool stays, if there is one.
        """
        parts, measured = [], Tally("privacy/", "synthesis/")
        for reply in self.ask_all(phase, server_round, with_model):
            result, groups = self.accept(reply)
            part = groups.get("synthetic", {})
            if result is not None and self.is_sound(reply, part):
                parts.append(part)
                measured.add(result.metrics, len(part["labels"]))
        if self.enough(len(parts)):
            self.replace_pool(parts, server_round)
        else:
            self.count("synthesis/too_few", 1)
            log(
                WARNING,
                "round %s: images of %s of %s clients are too few for a new pool",
                server_round,
                len(parts),
                len(self.roster),
            )
        self.metrics |= measured.means()
        return len(parts)

    def enough(self, answered: int) -> bool:
        """Whether so many of all clients are ``min-success-fraction``, and one at least."""
        return answered >= max(1, self.federation.min_success_fraction * len(self.roster))

    def need(self, answered: int, what: str) -> None:
        """End the run where too few clients took part in what comes once."""
        if not self.enough(answered):
            reasons = "; ".join([*dict.fromkeys(self.reasons), *self.advice])
            raise UserError(f"{answered} of {len(self.roster)} clients {what}: {reasons}")

    def is_sound(self, reply: Reply, part: Group) -> bool:
        """Whether a contribution may be pooled; if not, it is counted with its client."""
        problem = problem_with(
            part,
            self.evaluator.data.shape,
            get_spec(self.config.data.dataset).num_classes,
            self.limit(reply),
            self.params.synthetic_dtype,
            self.soft_labels,
        )
        if problem is None:
            return True
        self.reject(reply.partition, f"its synthetic images were refused: {problem}")
        return False

    def replace_pool(self, parts: list[Group], server_round: int) -> None:
        """The parts become the pool; without any image the old one stays."""
        pool = Pool.merge(parts)
        if pool is None:
            return
        generator = numpy_generator(self.federation.seed, server_round, "pool-max")
        pool = pool.limited(self.params.pool_max, generator)
        self.pool, self.pool_version = pool.arrays(), server_round
        self.holders: set[int] = set()
        self.metrics["synthesis/pool_size"] = len(pool.labels)

    def outgoing(self, partition: int) -> Groups:
        """The pool, for a client that does not hold it yet."""
        groups = super().outgoing(partition)
        if self.pool is None or partition in self.holders or not self.params.uses_pool:
            return groups
        return {**groups, "synthetic": self.pool}

    def transductive_set(self) -> Images | None:
        """The pool, where the refinement is to work on that."""
        if self.config.refinement.transductive_set == "test":
            return super().transductive_set()
        return PoolImages(self.pool, self.evaluator.data) if self.pool else None

    def fold(self, reply: Reply) -> None:
        """Remember who has answered with the current pool.

        Whoever fails may have lost it, and is sent it again.
        """
        super().fold(reply)
        if self.pool is None:
            return
        if reply.result is None:
            self.holders.discard(reply.partition)
        else:
            self.holders.add(reply.partition)

    def welcome(self, partition: int) -> None:
        """A new node holds no pool."""
        super().welcome(partition)
        if self.pool is not None:
            self.holders.discard(partition)

    def shared(self) -> Group:
        """The pool as 8-bit pixels with one class each, whatever it travels as."""
        assert self.pool is not None  # there is a version of it
        data = self.evaluator.data
        images = decode(torch.from_numpy(self.pool["images"]), data.mean, data.std)
        pixels = encode(images, "uint8", data.mean, data.std)
        return {"images": pixels, "labels": hard(self.pool["labels"])}

    def state(self) -> tuple[Group, dict[str, Any]]:
        """The pool. Who holds it is not kept: after a restart everyone is sent it again."""
        arrays, scalars = super().state()
        return {**arrays, **(self.pool or {})}, {**scalars, "pool-version": self.pool_version}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """The pool as it was."""
        super().restore(arrays, scalars)
        self.pool_version, self.holders = scalars["pool-version"], set()
        if self.pool_version:
            self.pool = {name: arrays[name] for name in ("images", "labels")}
