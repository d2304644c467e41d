"""Sending messages to clients and taking the replies in an order of our own."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flwr.common import Code, FitIns, FitRes, GetPropertiesIns, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.healing import is_transient
from fedsyn_flwr.payload import nbytes
from fedsyn_flwr.rng import numpy_generator

Roster = dict[int, ClientProxy]
ATTEMPTS = 3
WRAPPED = re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>:<'(.*)'>\)", re.DOTALL)  # by a SuperNode


@dataclass(frozen=True)
class Reply:
    """A client's answer, or why there is none.

    ``down`` and ``up`` are the bytes of the arrays sent and received.
    """

    partition: int
    result: FitRes | None
    reason: str
    down: int
    up: int


def sample_clients(
    everyone: Iterable[int], fraction: float, key: tuple[int, int, int]
) -> list[int]:
    """A round's clients, ascending: a function of the key alone, so the same for every method.

    Parameters
    ----------
    everyone : iterable of int
        Partition ids.
    fraction : float
        Share of them to take, at least one.
    key : tuple
        (seed, round, attempt).
    """
    ids = sorted(everyone)
    count = max(1, round(fraction * len(ids)))
    chosen = numpy_generator(*key, "sampling").choice(ids, size=count, replace=False)
    return sorted(int(k) for k in chosen)


def call(partition: int, proxy: ClientProxy, ins: FitIns, timeout: float | None) -> Reply:
    """One message to one client; never raises.

    A message whose process died under it is sent again: a client's answer is a function of the
    message and of its state before this round, so the second answer is the first one's equal.
    """
    down = nbytes(ins.parameters)
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            result = proxy.fit(ins, timeout=timeout, group_id=int(ins.config["round"]))
            break
        except Exception as error:  # whatever the transport raises is that client's failure
            if not (attempts_left and is_transient(str(error))):
                return Reply(partition, None, reason_of(str(error)), down, 0)
    if result.status.code != Code.OK:
        return Reply(partition, None, reason_of(result.status.message), down, 0)
    return Reply(partition, result, "", down, nbytes(result.parameters))


def exchange(
    roster: Roster,
    messages: Mapping[int, FitIns],
    timeout: float | None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Reply]:
    """Send all messages at once, yield the replies in partition order.

    Replies that arrive early wait for their turn, so whatever is summed over them does not depend
    on the order of arrival. There is a thread per client in flight, since each polls for its
    reply.
    """
    done = 0

    def finished(_: object) -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, len(messages))

    with ThreadPoolExecutor(max_workers=max(1, min(len(messages), 128))) as threads:
        futures = []
        for partition in sorted(messages):
            args = (partition, roster[partition], messages[partition], timeout)
            futures.append(threads.submit(call, *args))
            futures[-1].add_done_callback(finished)
        for i, future in enumerate(futures):
            yield future.result()
            futures[i] = None  # type: ignore[call-overload]  # free the reply once used


def reason_of(message: str) -> str:
    """The telling last line of an error that Flower wrapped, as a simulation or a node does."""
    wrapped = WRAPPED.search(message)
    if wrapped:
        kind, message = wrapped.groups()
        message = message if kind == UserError.__name__ else f"{kind}: {message}"
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def wait_for_clients(
    manager: ClientManager,
    expected: int,
    timeout: float,
    shape: tuple[int, int, int] | None = None,
) -> Roster:
    """Partition id → client, once all of them are there.

    Parameters
    ----------
    manager : ClientManager
        Flower's list of connected nodes.
    expected : int
        How many clients the run wants; 0 = as many as the first node says there are.
    timeout : float
        Seconds to wait for them.
    shape : tuple of int, optional
        (C, H, W) that the images of nodes with their own data must have.

    Raises
    ------
    UserError
        If the federation has another size, too few appear in time, or two nodes have one name.
    """
    deadline = time.monotonic() + timeout
    _wait(manager, max(expected, 1), 1, deadline)
    # All that are there at once, not one to begin with: every actor loads PyTorch to answer.
    answers = _ask(dict(manager.all()), timeout)
    announced = int(next(iter(answers.values())).get("num-partitions", expected))
    if expected and announced != expected:
        raise UserError(
            f"num-clients = {expected}, but the federation has {announced} SuperNodes: "
            f'pass --federation-config "num-supernodes={expected}" to flwr run, '
            f"or --clients {expected} to fedsyn run"
        )
    _wait(manager, announced, announced, deadline)
    proxies = dict(manager.all())
    answers |= _ask({node: p for node, p in proxies.items() if node not in answers}, timeout)
    places = partitions_of({node: answers[node] for node in proxies}, shape)
    found = {places[node]: proxy for node, proxy in proxies.items()}
    if len(found) != announced:
        raise UserError(f"{len(proxies)} SuperNodes answer for {len(found)} of {announced} clients")
    return dict(sorted(found.items()))


def partitions_of(
    answers: Mapping[str, Mapping[str, Scalar]], shape: tuple[int, int, int] | None
) -> dict[str, int]:
    """Node → partition: its own word, or its place in the order of the nodes' names.

    So the same nodes have the same places in every run, whoever comes first.

    Raises
    ------
    UserError
        If two nodes have one name, or a node's images are not of the given shape.
    """
    names = {node: str(a["node-name"]) for node, a in answers.items() if "node-name" in a}
    if not names:
        return {node: int(answer["partition-id"]) for node, answer in answers.items()}
    for name, count in Counter(names.values()).items():
        if count > 1:
            raise UserError(
                f"{count} SuperNodes are called {name}: give each another node-name in its "
                "--node-config"
            )
    wanted = "x".join(map(str, shape or ()))
    for node, name in names.items():
        found = str(answers[node].get("image-shape", ""))
        if shape and found != wanted:
            raise UserError(
                f"SuperNode {name}: its images are {found} (channels, height, width), "
                f"the server's test images {wanted}: resize them"
            )
    ranks = {name: place for place, name in enumerate(sorted(names.values()))}
    return {node: ranks[name] for node, name in names.items()}


def _ask(proxies: Mapping[str, ClientProxy], timeout: float) -> dict[str, Mapping[str, Scalar]]:
    """Node → its properties, of all nodes at the same time."""
    with ThreadPoolExecutor(max_workers=64) as threads:
        answers = threads.map(lambda proxy: _properties(proxy, timeout), proxies.values())
        return dict(zip(proxies, answers, strict=True))


def _wait(manager: ClientManager, wanted: int, needed: int, deadline: float) -> None:
    while manager.num_available() < needed:
        if time.monotonic() > deadline:
            raise UserError(
                f"{manager.num_available()} of {wanted} clients appeared within node-timeout: "
                "start more SuperNodes or raise node-timeout"
            )
        time.sleep(0.1)


def _properties(proxy: ClientProxy, timeout: float) -> Mapping[str, Scalar]:
    try:
        answer = proxy.get_properties(GetPropertiesIns(config={}), timeout=timeout, group_id=0)
    except Exception as error:
        raise UserError(f"a client cannot start: {reason_of(str(error))}") from None
    if answer.status.code != Code.OK:
        raise UserError(f"a client cannot start: {reason_of(answer.status.message)}")
    return answer.properties
