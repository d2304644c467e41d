"""What a strategy sends to clients, and what it takes of their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from flwr.common import FitIns, FitRes, Parameters, Scalar

from fedsyn_flwr.config import FederationConfig
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import (
    Group,
    Groups,
    from_parameters,
    is_finite,
    shapes,
    to_parameters,
)
from fedsyn_flwr.server.client_versions import Kept
from fedsyn_flwr.server.requests import Reply, exchange
from fedsyn_flwr.server.workshop import Workshop

Progress = Callable[[str, int, int], None]


class Post(Workshop):
    """The half of a strategy that writes messages and opens replies.

    Attributes
    ----------
    run : str
        Identifies the run's state on the nodes.
    parameters : Parameters
        w_t alone, as it travels.
    kept : Kept
        Which round's state the clients go on from.
    settled : int
        The last round that will never be repeated.
    pool_version : int
        The round that made the pool; 0 without one.
    by_reference : bool
        Whether messages point at shared memory.
    """

    federation: FederationConfig
    run: str
    parameters: Parameters
    kept: Kept
    settled: int
    pool_version: int
    progress: Progress
    by_reference = False

    # ---- where a method plugs in

    def outgoing(self, partition: int) -> Groups:
        """Groups that this client gets beside the model; the same objects where shared."""
        return {}

    def enclosed(self, phase: str, partition: int) -> Groups:
        """Groups that go with a message of a phase: those of `outgoing` with ``train``."""
        return self.outgoing(partition) if phase == "train" else {}

    def state(self) -> tuple[Group, dict[str, Any]]:
        """Also which state the clients go on from."""
        arrays, scalars = super().state()
        return arrays, {**scalars, **self.kept.state()}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """The same."""
        super().restore(arrays, scalars)
        self.kept.restore(scalars)

    # ---- tools

    def messages(
        self, partitions: Iterable[int], phase: str, server_round: int, with_model: bool = True
    ) -> dict[int, FitIns]:
        """A message for each client; clients that get the same arrays share their bytes."""
        plain = self.parameters if with_model else self.serialise({}, with_model)
        shared: dict[tuple[int, ...], Parameters] = {(): plain}
        config: dict[str, Scalar] = {
            "run": self.run,
            "round": server_round,
            "phase": phase,
            "settled": min(self.settled, server_round - 1),
            "pool": self.pool_version,
        }
        messages = {}
        for partition in sorted(partitions):
            extra = self.enclosed(phase, partition)
            key = tuple(id(group) for group in extra.values())
            if key not in shared:
                shared[key] = self.serialise(extra, with_model)
            own = {"partition": partition, **self.kept.words(partition)}
            messages[partition] = FitIns(shared[key], {**config, **own})
        return messages

    def ask_all(
        self, phase: str, server_round: int, with_model: bool = True, shown: str = ""
    ) -> Iterable[Reply]:
        """Every client's reply to a phase of the method's own, in partition order.

        Progress is ``shown`` under the phase's name unless another is given.
        """
        start = time.perf_counter()
        messages = self.messages(self.roster, phase, server_round, with_model)
        progress = partial(self.progress, shown or phase)
        yield from exchange(self.roster, messages, self.federation.round_timeout, progress)
        self.spent(phase, time.perf_counter() - start)

    def accept(self, reply: Reply) -> tuple[FitRes | None, Groups]:
        """Count a reply's bytes and unpack it; failures are kept with their reason."""
        self.count("bytes/down", reply.down)
        self.count("bytes/up", reply.up)
        if reply.result is None:
            self.fail(reply.partition, reply.reason)
            return None, {}
        try:
            groups = from_parameters(reply.result.parameters, self.flat.layout)
        except UserError as error:
            self.reject(reply.partition, str(error))
            return None, {}
        problem = self.problem_with(groups)
        if problem:
            self.reject(reply.partition, problem)
            return None, {}
        self.accountant.exposed |= groups.keys() != {"model"}
        self.costs.add(reply.result.metrics)
        return reply.result, groups

    def problem_with(self, groups: Groups) -> str:
        """Why an answer cannot be used; empty if it can."""
        for name, group in groups.items():
            if not is_finite(group):
                return f"its {name} has NaN or infinite values"
        own, sent = shapes(self.model), shapes(groups.get("model", self.model))
        return "" if own == sent else f"its model has vectors {sent}, expected {own}"

    def weight_of(self, result: FitRes) -> float:
        """p_k: the client's samples, or 1 where it has any and weighting is uniform."""
        uniform = self.federation.weighting == "uniform"
        return float(bool(result.num_examples)) if uniform else float(result.num_examples)

    def serialise(self, extra: Groups, with_model: bool = True) -> Parameters:
        """The global model and extra groups as they travel."""
        model = {"model": self.model} if with_model else {}
        return to_parameters({**model, **extra}, self.flat.layout, self.by_reference)
