"""Messages and replies of a simulation are passed on at once, in order, and none is lost."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedsyn_flwr.simulation import dispatch

NODES = 20


class Engine:
    """Flower's state and grid, with our thread between them and clients that are played here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from flwr.server.superlink.fleet.vce import vce_api

        for name in ("_run_id", "_node_id", "_task_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state: Any = factory.state()
        run = Run.create_empty(run_id=1)
        run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
        self.state.run_ids[1] = RunRecord(run=run)
        self.state.task_store[1] = Task(task_id=1, run_id=1)
        self.mapping = vce_api._register_nodes(num_nodes=NODES, state_factory=factory)
        self.nodes = list(self.mapping)
        self.grid = InMemoryGrid(state_factory=factory)
        self.grid.set_run(run)
        self.queue, self.stop = Queue[Message](), threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        args = (self.state, self.queue, self.mapping, self.stop)
        self.threads.append(threading.Thread(target=dispatch.add_messages_to_queue, args=args))
        self.threads[-1].start()

    def answer(self) -> None:
        """Answer whatever comes."""

        def work() -> None:
            while not self.stop.is_set():
                try:
                    message = self.queue.get(timeout=0.1)
                except Empty:
                    continue
                reply = Message(RecordDict(), reply_to=message)
                reply.metadata.__dict__["_message_id"] = f"reply to {message.metadata.message_id}"
                self.state.store_message_res(reply)

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def message(self, node: int = 0, ttl: float | None = None) -> Message:
        return Message(RecordDict(), self.nodes[node], "train", ttl=ttl)

    def send(self, *of: Any, timeout: float | None = None) -> list[Message]:
        return dispatch.send_and_receive(self.grid, [self.message(*of)], timeout=timeout)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    found = Engine(monkeypatch)
    yield found
    found.stop.set()
    for thread in found.threads:
        thread.join()
    assert not dispatch.waiting


def test_a_reply_is_there_at_once(engine: Engine) -> None:
    """Flower's own looks every tenth of a second, for messages and for replies."""
    engine.start()
    engine.answer()
    began = time.perf_counter()
    for node in range(NODES):
        (reply,) = engine.send(node)
        assert reply.metadata.src_node_id == engine.nodes[node]
    assert time.perf_counter() - began < NODES * 0.1  # one look for each, and it would be more


def test_many_at_once_come_in_the_order_of_the_nodes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the actors have work, which the first message is here, as nobody takes it."""
    monkeypatch.setattr(dispatch, "BURST", 2.0)  # on a busy machine the threads send far apart
    engine.start()
    with ThreadPoolExecutor(NODES) as threads:
        sent = [threads.submit(engine.send, NODES - 1)]
        while engine.queue.empty():
            time.sleep(0.01)
        sent += [threads.submit(engine.send, node) for node in reversed(range(NODES - 1))]
        while engine.queue.qsize() < NODES:
            time.sleep(0.01)
        order = [engine.nodes.index(m.metadata.dst_node_id) for m in engine.queue.queue]
        engine.answer()
        assert [len(future.result()) for future in sent] == [1] * NODES
    assert order == [NODES - 1, *range(NODES - 1)]


def test_what_was_stored_before_is_delivered_too(engine: Engine) -> None:
    engine.grid.push_messages([engine.message(3), engine.message(3), engine.message(1)])
    engine.start()
    came = [engine.queue.get(timeout=5).metadata.dst_node_id for _ in range(3)]
    assert came == [engine.nodes[i] for i in (1, 3, 3)]


def test_two_messages_to_one_node_are_two(engine: Engine) -> None:
    engine.start()
    engine.answer()
    messages = [engine.message(2), engine.message(2), engine.message(5)]
    replies = dispatch.send_and_receive(engine.grid, messages)
    assert sorted(engine.nodes.index(r.metadata.src_node_id) for r in replies) == [2, 2, 5]


def test_a_message_that_expires_is_an_error(engine: Engine) -> None:
    engine.start()
    began = time.monotonic()
    (reply,) = engine.send(0, 0.3)
    assert reply.has_error()
    assert time.monotonic() - began < 0.3 + 2 * dispatch.LOOK


def test_the_callers_patience_ends(engine: Engine) -> None:
    engine.start()
    began = time.monotonic()
    assert engine.send(0, timeout=0.2) == []
    assert 0.2 <= time.monotonic() - began < 1


def test_only_in_the_process_of_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.server.superlink.fleet.vce import vce_api

    monkeypatch.setattr(vce_api, "add_messages_to_queue", vce_api.add_messages_to_queue)
    monkeypatch.setattr(InMemoryGrid, "send_and_receive", InMemoryGrid.send_and_receive)
    before = vce_api.add_messages_to_queue, InMemoryGrid.send_and_receive
    with monkeypatch.context() as without:
        without.delitem(sys.modules, dispatch.ENGINE)
        assert not dispatch.deliver_promptly()
        assert (vce_api.add_messages_to_queue, InMemoryGrid.send_and_receive) == before
    with monkeypatch.context() as other:
        other.delattr(vce_api, "add_messages_to_queue")
        assert not dispatch.deliver_promptly()
        assert InMemoryGrid.send_and_receive is before[1]
    assert dispatch.deliver_promptly()
    assert vce_api.add_messages_to_queue is dispatch.add_messages_to_queue
    assert InMemoryGrid.send_and_receive is dispatch.send_and_receive
