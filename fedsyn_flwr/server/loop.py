"""The round loop: configure → fit → fold → finalise → evaluate → track."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from logging import INFO, WARNING
from typing import Any

from flwr.common import log
from flwr.server import History, Server
from flwr.server.client_manager import ClientManager

from fedsyn_flwr.compute.cluster import machines
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.server.checkpoint import Checkpoints
from fedsyn_flwr.server.requests import exchange
from fedsyn_flwr.server.strategy import FedStrategy
from fedsyn_flwr.server.tracking import Tracker

Metrics = dict[str, Any]


class RunStopped(Exception):  # noqa: N818 - not an error of the program
    """The run cannot go on; what was reached is kept."""


class FedServer(Server):
    """Flower's server with our round loop.

    It differs from the stock one where that falls short: replies are folded as they arrive, in
    partition order; a round with too few successes is retried once, first of all with clients that
    have not failed in it, and then ends the run with a status instead of averaging over a remnant.
    """

    strategy: FedStrategy

    def __init__(
        self,
        *,
        client_manager: ClientManager,
        strategy: FedStrategy,
        tracker: Tracker,
        checkpoints: Checkpoints,
    ) -> None:
        super().__init__(client_manager=client_manager, strategy=strategy)
        self.tracker = tracker
        self.checkpoints = checkpoints
        self.phase_shown = 0.0
        self.said: set[str] = set()

    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        """Run the federation; ends with a status file in every case."""
        start, history = time.perf_counter(), History()
        self.strategy.progress = self.show
        try:
            self.loop(num_rounds, timeout, history)
        except RunStopped as reason:
            # The state before the failed round is whole, and worth going on from.
            self.checkpoints.save(self.strategy.checkpoint(self.tracker.rounds))
            self.close("stopped", str(reason))
        except UserError as error:
            self.close("failed", str(error))
        except BaseException as error:
            self.close("failed", f"{type(error).__name__}: {error}")
            raise
        else:
            self.close("completed", "")
        return history, time.perf_counter() - start

    def loop(self, num_rounds: int, timeout: float | None, history: History) -> None:
        """All rounds that are not done yet."""
        self.show("waiting for clients", 0, self.strategy.federation.num_clients)
        self.strategy.enrol(self._client_manager)
        self.warn_of_scattered_state()
        self.parameters = self.strategy.parameters
        for server_round in range(self.tracker.rounds + 1, num_rounds + 1):
            metrics = self.one_round(server_round, timeout)
            if self.strategy.pool.version:
                self.tracker.pool(self.strategy.pool.version, self.strategy.pool.pixels)
            self.tracker.round({"round": server_round, **metrics})
            log(INFO, self.line(server_round, num_rounds, metrics))
            self.checkpoint(server_round, num_rounds)
            if "server/test_loss" in metrics:
                history.add_loss_centralized(server_round, metrics["server/test_loss"])
                history.add_metrics_centralized(server_round, metrics)
            if "clients/test_loss" in metrics:
                history.add_loss_distributed(server_round, metrics["clients/test_loss"])
                history.add_metrics_distributed(server_round, metrics)

    def one_round(self, server_round: int, timeout: float | None) -> Metrics:
        """One round with its evaluation; returns its metrics."""
        self.current, start = server_round, time.perf_counter()
        for attempt in range(2):
            self.strategy.attempt = attempt
            if self.train(server_round, timeout):
                break
        else:
            raise RunStopped(
                f"round {server_round}: too few clients succeeded, twice: "
                + "; ".join(dict.fromkeys(self.strategy.record.reasons))
            )
        self.strategy.attempt = 0
        parameters, metrics = timed("aggregation", self.strategy, server_round)
        if parameters is None:
            log(WARNING, "round %s: no client had samples; the model is unchanged", server_round)
        else:
            self.parameters = parameters
        self.evaluate(server_round, metrics)
        metrics["seconds/round"] = time.perf_counter() - start
        return dict(sorted(metrics.items()))

    def train(self, server_round: int, timeout: float | None) -> bool:
        """One attempt at a round's training; whether enough clients succeeded."""
        strategy = self.strategy
        messages = strategy.start_round(server_round, self.parameters, self._client_manager)
        start, failed = time.perf_counter(), int(strategy.record.metrics["clients/failed"])
        for reply in exchange(strategy.roster, messages, timeout, self.reporter("training")):
            strategy.receive(reply)
        strategy.record.spend("training", time.perf_counter() - start)
        self.print_reasons()
        failures = int(strategy.record.metrics["clients/failed"]) - failed
        needed = strategy.federation.min_success_fraction * len(messages)
        return len(messages) - failures >= needed and failures < len(messages)

    def evaluate(self, server_round: int, metrics: Metrics) -> None:
        """Add accuracy and loss, on the server's test set and on the clients', to a round's."""
        self.show("evaluation", 0, 1)
        start = time.perf_counter()
        result = self.strategy.evaluate(server_round, self.parameters)
        if result is not None:
            metrics.update(result[1])
        self.ask_clients(server_round, metrics)
        metrics["seconds/evaluation"] = time.perf_counter() - start

    def ask_clients(self, server_round: int, metrics: Metrics) -> None:
        """Add what the clients find out about the model on images of their own."""
        strategy = self.strategy
        messages = strategy.questions(server_round, self.parameters)
        if not messages:
            return
        timeout, progress = strategy.federation.round_timeout, self.reporter("evaluation")
        for reply in exchange(strategy.roster, messages, timeout, progress):
            strategy.tests.receive(reply)
        metrics.update({**strategy.record.metrics, **strategy.tests.figures()})
        self.print_reasons()

    def checkpoint(self, server_round: int, num_rounds: int) -> None:
        """Keep the state every ``checkpoint-every`` rounds; rounds up to it are settled then."""
        every = self.strategy.config.output.checkpoint_every
        if every and (server_round % every == 0 or server_round == num_rounds):
            self.checkpoints.save(self.strategy.checkpoint(server_round))
        if not every or server_round % every == 0:
            self.strategy.versions.settle(server_round)

    # ---- what is said

    def reporter(self, phase: str) -> Callable[[int, int], None]:
        """Progress of one phase."""
        return lambda done, total: self.show(phase, done, total)

    def show(self, phase: str, done: int, total: int) -> None:
        """Put the current phase in the status file, at most five times a second."""
        now = time.monotonic()
        if now - self.phase_shown < 0.2 and done not in (0, total):
            return
        self.phase_shown = now
        current = getattr(self, "current", 0)
        self.tracker.status("running", round=current, phase=phase, done=done, total=total)

    def print_reasons(self) -> None:
        """Each distinct failure once."""
        for reason in dict.fromkeys(self.strategy.record.reasons):
            if reason not in self.said:
                log(WARNING, "failed: %s", reason)
                self.said.add(reason)

    def line(self, server_round: int, num_rounds: int, metrics: Metrics) -> str:
        """A round in one line, for the log."""
        parts = [f"round {server_round}/{num_rounds}"]
        for name, key, form in (
            ("accuracy", "server/test_accuracy", "{:.4f}"),
            ("test loss", "server/test_loss", "{:.4f}"),
            ("clients' accuracy", "clients/test_accuracy", "{:.4f}"),
            ("train loss", "clients/train_loss", "{:.4f}"),
            ("seconds", "seconds/round", "{:.2f}"),
            ("bytes down", "bytes/down", "{:,}"),
            ("bytes up", "bytes/up", "{:,}"),
        ):
            if key in metrics:
                parts.append(f"{name} {form.format(metrics[key])}")
        return "  ".join(parts)

    def warn_of_scattered_state(self) -> None:
        """A client of a Ray cluster is played now here, now there: its state must be everywhere."""
        count = machines()
        if count > 1 and not self.strategy.config.output.state_dir:
            log(
                WARNING,
                "%s machines and no state-dir: what a client keeps between rounds is lost when "
                "another machine plays it; name a folder that all of them share",
                count,
            )

    def close(self, status: str, reason: str) -> None:
        """Keep the model, beside it a refined one that clients do not get; say how it ended."""
        strategy = self.strategy
        refined = strategy.refiner.refined if strategy.refiner else None
        if refined is not None and refined is not strategy.model:
            strategy.flat.load(refined)
            self.tracker.model(strategy.flat, "refined")
        strategy.flat.load(strategy.model)
        self.tracker.model(strategy.flat)
        self.tracker.status(status, reason)
        if status == "completed":
            # What simulated clients kept for their next round; real nodes keep theirs elsewhere.
            shutil.rmtree(self.tracker.folder / "state", ignore_errors=True)
            log(INFO, "completed; results in %s", self.tracker.folder)
        else:
            log(WARNING, "%s: %s", status, reason)


def timed(phase: str, strategy: FedStrategy, server_round: int) -> tuple[Any, Metrics]:
    """Finalise a round and note how long it took."""
    start = time.perf_counter()
    parameters, metrics = strategy.finalise(server_round)
    metrics[f"seconds/{phase}"] = time.perf_counter() - start
    return parameters, metrics
