"""HFMDS-FL (arXiv 2308.04761), server half: when to synthesise, what to pool, whom to send it."""

from typing import Any

import torch

from fedsyn_flwr.data import get_spec
from fedsyn_flwr.exchange import Reply
from fedsyn_flwr.payload import Group, Groups
from fedsyn_flwr.rng import numpy_generator
from fedsyn_flwr.synthesis.encoding import decode, encode
from fedsyn_flwr.synthesis.pool import Pool, problem_with
from fedsyn_flwr.tally import Tally
from strategies.fedavg import FedAvg


class HFMDS(FedAvg):
    """Algorithm 1 of HFMDS-FL, the server's lines.

    Every T_d rounds all K clients, not only the sampled ones, invert w_t; the server pools their
    images (replacing the old pool), and the round's training runs with the new pool.
    """

    pool: Group | None = None

    def before_fit(self, server_round: int) -> None:
        """Synthesis when t is a multiple of T_d."""
        super().before_fit(server_round)
        if server_round % self.params.synthesis_every:
            return
        parts, measured = [], Tally("privacy/", "synthesis/")
        for reply in self.ask_all("synthesis", server_round):
            result, groups = self.accept(reply)
            part = groups.get("synthetic", {})
            if result is not None and self.is_sound(reply, part):
                parts.append(part)
                measured.add(result.metrics, len(part["labels"]))
        self.replace_pool(parts, server_round)
        self.metrics |= measured.means()

    def is_sound(self, reply: Reply, part: Group) -> bool:
        """Whether a contribution may be pooled; if not, it is counted with its client."""
        limit = self.params.synthesis_per_client
        classes = get_spec(self.config.data.dataset).num_classes
        dtype = self.params.synthetic_dtype
        problem = problem_with(part, self.evaluator.data.shape, classes, limit, dtype)
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
        if self.pool is None or partition in self.holders or self.params.hfmds_alpha == 1:
            return groups
        return {**groups, "synthetic": self.pool}

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

    def shared(self) -> Group:
        """The pool as 8-bit pixels, whatever it travels as."""
        assert self.pool is not None  # there is a version of it
        data = self.evaluator.data
        images = decode(torch.from_numpy(self.pool["images"]), data.mean, data.std)
        return {**self.pool, "images": encode(images, "uint8", data.mean, data.std)}

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
