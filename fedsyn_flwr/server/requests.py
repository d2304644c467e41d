"""Sending messages to clients and taking the replies in an order of our own."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock

from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters
from flwr.server.client_proxy import ClientProxy

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.client_scores import TEST_LOSS
from fedsyn_flwr.messages.payload import hold, may_be_read_late, nbytes, points
from fedsyn_flwr.messages.shared_memory import SenderGone
from fedsyn_flwr.rng import numpy_generator

Message = FitIns | EvaluateIns

ATTEMPTS = 3
THREADS = ThreadPoolExecutor(max_workers=128)  # made when first needed, then kept
WRAPPED = re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>:<'(.*)'>\)", re.DOTALL)  # by a SuperNode
# Flower's own words for a node that does not answer → ours.
SILENCES = {
    "Message Unavailable": "no answer within round-timeout",
    "Node Unavailable": "its node is not connected",
}


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
    everyone: Iterable[int],
    fraction: float,
    key: tuple[int, int, int | str],
    avoid: Collection[int] = (),
) -> list[int]:
    """A round's clients, ascending: a function of the arguments, so the same for every method.

    Parameters
    ----------
    everyone : iterable of int
        Partition ids.
    fraction : float
        Share of them to take, at least one.
    key : tuple
        (seed, round, attempt), or what else the clients are wanted for.
    avoid : collection of int
        Those to take only where there are not enough others.
    """
    ids = sorted(everyone)
    count = max(1, round(fraction * len(ids)))
    others, avoided = [k for k in ids if k not in avoid], [k for k in ids if k in avoid]
    generator = numpy_generator(*key, "sampling")
    first = generator.choice(others, size=min(count, len(others)), replace=False)
    rest = generator.choice(avoided, size=count - len(first), replace=False)
    return sorted(int(k) for k in (*first, *rest))


def deliver(proxy: ClientProxy, ins: Message, timeout: float | None) -> FitRes:
    """A message to a client, for training or for a test; its answer."""
    group = int(ins.config["round"])
    if isinstance(ins, EvaluateIns):
        return answer_of(proxy.evaluate(ins, timeout=timeout, group_id=group))
    return proxy.fit(ins, timeout=timeout, group_id=group)


def answer_of(result: EvaluateRes) -> FitRes:
    """A test's result as an answer without arrays; its loss is among the words."""
    words = {**result.metrics, TEST_LOSS: result.loss}
    return FitRes(result.status, Parameters([], ""), result.num_examples, words)


def call(partition: int, proxy: ClientProxy, ins: Message, timeout: float | None) -> Reply:
    """One message to one client; never raises.

    A message whose process died under it is sent again: a client's answer is a function of the
    message and of its state before this round, so the second answer is the first one's equal.
    """
    down = nbytes(ins.parameters)
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            result = deliver(proxy, ins, timeout)
            if points(ins.parameters):
                result.parameters = hold(result.parameters)
            break
        except Exception as error:  # whatever the transport raises is that client's failure
            died = isinstance(error, SenderGone) or is_transient(str(error))
            if not (attempts_left and died):
                may_be_read_late(ins.parameters)
                return Reply(partition, None, reason_of(str(error)), down, 0)
    if result.status.code != Code.OK:
        return Reply(partition, None, reason_of(result.status.message), down, 0)
    return Reply(partition, result, "", down, nbytes(result.parameters))


def exchange(
    roster: Mapping[int, ClientProxy],
    messages: Mapping[int, Message],
    timeout: float | None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Reply]:
    """Send all messages at once, yield the replies in partition order.

    Replies that arrive early wait for their turn, so whatever is summed over them does not depend
    on the order of arrival. There is a thread per client in flight, since each waits for its
    reply.
    """
    done, lock = 0, Lock()

    def ask(partition: int) -> Reply:
        """Also say how far all are, before the answer is there: nothing may be said after it."""
        nonlocal done
        reply = call(partition, roster[partition], messages[partition], timeout)
        if progress:
            with lock:
                done += 1
                progress(done, len(messages))
        return reply

    futures = deque[Future[Reply]]()
    try:
        futures.extend(THREADS.submit(ask, partition) for partition in sorted(messages))
        while futures:
            yield futures.popleft().result()  # kept by nobody, so freed once used
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def reason_of(message: str) -> str:
    """The telling last line of an error that Flower wrapped, as a simulation or a node does."""
    for theirs, ours in SILENCES.items():
        if f"Error: {theirs}" in message:
            return ours
    wrapped = WRAPPED.search(message)
    if wrapped:
        kind, message = wrapped.groups()
        message = message if kind == UserError.__name__ else f"{kind}: {message}"
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


# How Ray's failures of a process, not of the client's own code, read in Flower's error messages.
TRANSIENT = (
    "ActorDiedError",
    "ActorUnavailableError",
    "RayActorError",
    "WorkerCrashedError",
    "NodeDiedError",
)


def is_transient(message: str) -> bool:
    """Whether a failure says that a process died, so that repeating the message may help."""
    return any(name in message for name in TRANSIENT)
