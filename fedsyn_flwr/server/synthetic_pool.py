"""The server's pool of synthetic images: everybody's contributions, sent to everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

import torch
from flwr.common import log

from fedsyn_flwr.config import Config
from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.rng import numpy_generator
from fedsyn_flwr.server.metric_means import MetricMeans
from fedsyn_flwr.server.round_record import RoundRecord
from fedsyn_flwr.server.update import Update, is_enough
from fedsyn_flwr.synthesis.encoding import decode, encode
from fedsyn_flwr.synthesis.pool import Pool, PoolImages, hard, problem_with


class SyntheticPool:
    """What clients made, and which clients hold it already.

    Parameters
    ----------
    data : ResidentData
        The server's images, for their shape and statistics.
    num_classes : int
        The run's classes.
    config : Config
        The run's; of the method's keys ``synthetic_dtype``, ``pool_max`` and ``uses_pool``.
    record : RoundRecord
        Is told who was refused and why.
    soft_labels : bool
        Whether the labels are shares of the classes.

    Attributes
    ----------
    arrays : dict or None
        ``images`` (N, C, H, W) and ``labels`` (N,), or (N, classes), as they travel.
    version : int
        The round that made them; 0 without any.
    """

    def __init__(
        self,
        data: ResidentData,
        num_classes: int,
        config: Config,
        record: RoundRecord,
        soft_labels: bool,
    ) -> None:
        self.data, self.num_classes = data, num_classes
        self.params: Any = config.params
        self.federation, self.record, self.soft_labels = config.federation, record, soft_labels
        self.arrays: Group | None = None
        self.version = 0
        self.holders: set[int] = set()

    # ---- contributions

    def renew(
        self,
        updates: Iterable[Update],
        server_round: int,
        limit: Callable[[Update], int],
        clients: int,
    ) -> int:
        """Make the clients' images the new pool; returns how many clients' could be used.

        Parameters
        ----------
        updates : iterable of Update
            Answers with a group ``synthetic``, in partition order.
        server_round : int
            The new pool's version.
        limit : callable
            The most images that an update may contribute.
        clients : int
            How many were asked. Where fewer than ``min-success-fraction`` of them contribute, the
            old pool stays, if there is one.
        """
        parts, measured = [], MetricMeans("privacy/", "synthesis/")
        for update in updates:
            if self.accepts(update, limit(update)):
                part = update.groups["synthetic"]
                parts.append(part)
                measured.add(update.metrics, len(part["labels"]))
        if is_enough(len(parts), clients, self.federation):
            self.replace(parts, server_round)
        else:
            self.record.count("synthesis/too_few")
            log(
                WARNING,
                "round %s: images of %s of %s clients are too few for a new pool",
                server_round,
                len(parts),
                clients,
            )
        self.record.add(measured.means())
        return len(parts)

    def accepts(self, update: Update, limit: int) -> bool:
        """Whether a contribution may be pooled; if not, it is counted with its client."""
        problem = problem_with(
            update.groups["synthetic"],
            self.data.shape,
            self.num_classes,
            limit,
            self.params.synthetic_dtype,
            self.soft_labels,
        )
        if problem is not None:
            reason = f"its synthetic images were refused: {problem}"
            self.record.reject(update.partition, reason)
        return problem is None

    def replace(self, parts: list[Group], server_round: int) -> None:
        """The parts become the pool; without any image the old one stays."""
        pool = Pool.merge(parts)
        if pool is None:
            return
        generator = numpy_generator(self.federation.seed, server_round, "pool-max")
        pool = pool.limited(self.params.pool_max, generator)
        self.arrays, self.version, self.holders = pool.arrays(), server_round, set()
        self.record.metrics["synthesis/pool_size"] = len(pool.labels)

    # ---- who has it

    def missing(self, partition: int) -> Group | None:
        """The pool, for a client that is to train on it and does not hold it yet."""
        if self.arrays is None or not self.params.uses_pool or partition in self.holders:
            return None
        return self.arrays

    def held(self, partition: int) -> None:
        """A client has answered with the current pool."""
        if self.arrays is not None:
            self.holders.add(partition)

    def lost(self, partition: int) -> None:
        """A client has failed or is another node now: it is sent the pool again."""
        self.holders.discard(partition)

    # ---- other uses

    def images(self) -> PoolImages | None:
        """The pool as a set to refine on; None where there is nothing yet."""
        return PoolImages(self.arrays, self.data) if self.arrays else None

    def pixels(self) -> Group:
        """The pool for people: uint8 ``images``, one class each in ``labels``, int64 (N,)."""
        assert self.arrays is not None  # there is a version of it
        mean, std = self.data.mean, self.data.std
        images = decode(torch.from_numpy(self.arrays["images"]), mean, std)
        return {"images": encode(images, "uint8", mean, std), "labels": hard(self.arrays["labels"])}

    # ---- checkpoints

    def state(self) -> tuple[Group, dict[str, Any]]:
        """The pool. Who holds it is not kept: after a restart everyone is sent it again."""
        return self.arrays or {}, {"pool-version": self.version}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """The pool as it was."""
        self.version, self.holders = scalars.get("pool-version", 0), set()
        if self.version:
            self.arrays = {name: arrays[name] for name in ("images", "labels")}
