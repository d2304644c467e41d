"""A federation in one process: the app's own clients, strategies and server without Ray."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.client import Client
from flwr.common import (
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetPropertiesIns,
    ReconnectIns,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from fedsyn_flwr import config, registry
from fedsyn_flwr.client.supernode import OwnData
from fedsyn_flwr.client.worker import UNPLACED, Worker
from fedsyn_flwr.messages.instruction import Instruction
from fedsyn_flwr.server.run import build_server


def told(number: int, phase: str = "train", last: int = 0) -> dict[str, Any]:
    """What a message says: its round and phase, and the round of the state to go on from."""
    return Instruction("run", number, phase, last=last).config()


class LocalProxy(ClientProxy):
    """A client that runs where it is called; a new one for every message, as under Ray."""

    def __init__(self, worker: Worker, partition: int) -> None:
        super().__init__(str(1000 - partition))  # ids in another order than partitions
        self.worker, self.partition = worker, partition
        self.misses: set[tuple[int, str]] = set()  # (round, phase) of messages it never gets
        self.calls: list[dict[str, Any]] = []

    def client(self) -> Client:
        method = registry.method(self.worker.settings.federation.strategy)
        return method.client(self.worker, self.partition).to_client()

    def get_properties(self, ins: GetPropertiesIns, timeout: Any, group_id: Any) -> Any:
        return self.client().get_properties(ins)

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        if (ins.config["round"], ins.config["phase"]) in self.misses:
            raise ValueError("Node Unavailable")
        self.calls.append(dict(ins.config))
        with self.worker.lock:  # one resident model: one client at a time, as in an actor
            return self.client().fit(ins)

    def get_parameters(self, ins: GetParametersIns, timeout: Any, group_id: Any) -> Any:
        raise AssertionError("the server knows the initial model")

    def evaluate(self, ins: EvaluateIns, timeout: Any, group_id: Any) -> EvaluateRes:
        with self.worker.lock:
            return self.client().evaluate(ins)

    def reconnect(self, ins: ReconnectIns, timeout: Any, group_id: Any) -> DisconnectRes:
        return DisconnectRes(reason="")


class Federation:
    """Build and run: ``Federation(tmp_path, clients=4, **{"strategy": "fedavg"}).run()``."""

    def __init__(self, folder: Path, clients: int, proxy: type = LocalProxy, **keys: Any) -> None:
        base = {
            "results-dir": str(folder),
            "state-dir": str(folder / "state"),
            "run-name": "run",
            "num-clients": clients,
        }
        self.run_config = config.merged(base, keys)
        self.parts = build_server(self.run_config)
        self.server, self.strategy = self.parts.server, self.parts.server.strategy
        self.proxies = self.start(clients, proxy)
        self.manager: SimpleClientManager = self.parts.client_manager
        for p in reversed(self.proxies):
            self.manager.register(p)
        self.folder = folder / "run"

    def start(self, clients: int, proxy: type) -> list[LocalProxy]:
        """The clients, all on one worker."""
        self.worker = lockable(Worker(config.load(self.run_config), clients))
        return [proxy(self.worker, k) for k in range(clients)]

    def run(self) -> "Federation":
        self.server.fit(self.parts.config.num_rounds, None)
        return self

    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        text = (self.folder / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def after(self, reached: int, action: Callable[[], Any]) -> None:
        """Do something between a round and the next."""
        track = self.server.tracker.round

        def then(row: dict[str, Any]) -> None:
            track(row)
            if row["round"] == reached:
                action()

        self.server.tracker.round = then

    @property
    def model(self) -> dict[str, Any]:
        return self.strategy.model


def lockable(worker: Worker) -> Worker:
    """A worker that serves one client at a time."""
    worker.lock = threading.Lock()  # type: ignore[attr-defined]
    return worker


class OwnFederation(Federation):
    """Every client with a worker of its own, as SuperNodes are; `names` in order of arrival."""

    def __init__(self, folder: Path, sites: Path, names: list[str], **keys: Any) -> None:
        self.sites, self.names = sites, names
        self.lock = threading.Lock()  # PyTorch may crash when threads count operations at once
        super().__init__(folder, len(names), **keys, partition="own")

    def start(self, clients: int, proxy: type) -> list[LocalProxy]:
        return [self.node(str(cid), name, proxy) for cid, name in enumerate(self.names)]

    def node(self, cid: str, name: str, proxy: type = LocalProxy) -> LocalProxy:
        """A node that is not connected yet."""
        own = OwnData(self.sites / name, name)
        worker = Worker(config.load(self.run_config), own)
        worker.lock = self.lock  # type: ignore[attr-defined]
        found: LocalProxy = proxy(worker, UNPLACED)
        found.cid = cid
        return found
