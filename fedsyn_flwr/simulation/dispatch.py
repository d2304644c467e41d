"""Flower's simulation without its waits: a message or a reply is passed on when it is there.

Flower 1.42 looks for new messages ten times a second, for each node among all messages, and for
each reply ten times a second: at the start and end of a round every core waits for the next look.
Where Flower works differently nothing is changed, and it looks at its own pace.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, Queue, SimpleQueue
from typing import Any

ENGINE = "flwr.server.superlink.fleet.vce.vce_api"
LOOK = 1.0  # s between two looks for a reply whose message has expired: that is an error by then
STOP = 0.5  # s within which the end of a run is noticed
BURST = 0.001  # s without another message, and a burst of them is over

waiting: dict[str, threading.Event] = {}  # message id → set when its reply is there


def deliver_promptly() -> bool:
    """In a simulation's process, before its engine runs: have it pass messages on at once.

    Returns
    -------
    bool
        Whether this is such a process, of a Flower that works as described above.
    """
    engine = sys.modules.get(ENGINE)
    if engine is None:
        return False
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid

    if not (hasattr(engine, "add_messages_to_queue") and hasattr(InMemoryGrid, "pull_messages")):
        return False
    for owner, ours in ((engine, add_messages_to_queue), (InMemoryGrid, send_and_receive)):
        setattr(owner, ours.__name__, ours)
    return True


def add_messages_to_queue(
    state: Any, queue: Queue[Any], nodes_mapping: dict[int, int], f_stop: threading.Event
) -> None:
    """In place of Flower's: what is stored for nodes goes to the queue, in the nodes' order.

    Many threads send at once, in no order, and a reply that comes late keeps all after it waiting.
    """
    receivers = SimpleQueue[int]()
    store_message, store_reply = state.store_message_ins, state.store_message_res

    def store_message_ins(message: Any) -> Any:
        ident = store_message(message)
        receivers.put(message.metadata.dst_node_id)
        return ident

    def store_message_res(message: Any) -> Any:
        ident = store_reply(message)
        asked = waiting.get(message.metadata.reply_to_message_id)
        if asked is not None:
            asked.set()
        return ident

    state.store_message_ins, state.store_message_res = store_message_ins, store_message_res
    for node in nodes_mapping:  # what was stored before
        for message in state.get_message_ins(node_id=node, limit=None):
            queue.put(message)
    while not f_stop.is_set():
        for node in sorted(arrived(receivers, queue), key=nodes_mapping.__getitem__):
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)


def arrived(receivers: SimpleQueue[int], queue: Queue[Any]) -> list[int]:
    """The next receiver, and where actors have work already, all that follow close upon it."""
    found, patience = list[int](), STOP
    with suppress(Empty):
        while not found or not queue.empty():
            found.append(receivers.get(timeout=patience))
            patience = BURST
    return found


def send_and_receive(
    grid: Any, messages: Iterable[Any], *, timeout: float | None = None
) -> list[Any]:
    """In place of Flower's: push messages, and wait for their replies without looking for them."""
    deadline = time.monotonic() + timeout if timeout is not None else float("inf")
    arrived, replies = threading.Event(), list[Any]()
    sent = list(messages)
    patience = min((message.metadata.ttl for message in sent), default=LOOK)
    missing = set(grid.push_messages(sent))
    del messages, sent  # the arrays in them are the engine's now
    waiting.update(dict.fromkeys(missing, arrived))
    try:
        while True:
            found = grid.pull_messages(missing)
            replies += found
            for reply in found:
                missing.discard(reply.metadata.reply_to_message_id)
                waiting.pop(reply.metadata.reply_to_message_id, None)
            if not missing or time.monotonic() >= deadline:
                return replies
            if not arrived.wait(max(0.0, min(patience, deadline - time.monotonic()))):
                patience = LOOK
            arrived.clear()
    finally:
        for ident in missing:
            waiting.pop(ident, None)
