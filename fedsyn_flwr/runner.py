"""Run the app through ``flwr run`` on a SuperLink of our own and report how it really ended.

``fedsyn run`` and ``fedsyn demo`` are thin shells around ``execute``. ``flwr run`` exits 0
whatever happened, so the server's status.json is what counts.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedsyn_flwr.config import APP_DIR, RunConfig
from fedsyn_flwr.plan import Options, results_folder
from fedsyn_flwr.processes import send
from fedsyn_flwr.report.console import Listener, Silent
from fedsyn_flwr.report.failure import read_errors
from fedsyn_flwr.report.progress import ENDED, Row, RunFiles
from fedsyn_flwr.superlink import LocalSuperLink

POLL_SECONDS = 0.2
WATCH_SECONDS = 2.0  # between two looks at the process table
GRACE_SECONDS = 15.0  # for Ray to shut down after the server's last word
VANISHED = "the simulation's process was killed (out of memory?)"


@dataclass(frozen=True)
class RunResult:
    """How a run ended, from its results folder."""

    folder: Path
    status: str
    rounds: int
    reason: str
    seconds: float
    rows: list[Row] = field(default_factory=list)

    @property
    def completed(self) -> bool:
        """Whether all rounds were run."""
        return self.status == "completed"

    @property
    def accuracies(self) -> list[tuple[int, float]]:
        """(round, server/test_accuracy) of the rounds with an evaluation."""
        key = "server/test_accuracy"
        return [(row["round"], row[key]) for row in self.rows if row.get(key) is not None]

    @property
    def round_seconds(self) -> float:
        """Seconds spent in rounds; the rest of ``seconds`` went into starting and stopping."""
        return float(sum(row.get("seconds/round") or 0.0 for row in self.rows))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent down to and up from the clients in all rounds."""
        down, up = (sum(row.get(f"bytes/{way}", 0) for row in self.rows) for way in ("down", "up"))
        return down, up


class Link(Protocol):
    """What ``execute`` needs of a LocalSuperLink."""

    def run(
        self, app_dir: Path, run_config: RunConfig, federation: RunConfig, log: Path
    ) -> subprocess.Popen[bytes]:
        """Submit a run."""

    def simulations(self) -> list[int]:
        """Process ids of the running simulations."""

    def close(self) -> None:
        """End everything."""


def execute(
    run_config: RunConfig,
    options: Options,
    superlink: Link | None = None,
    listener: Listener | None = None,
    app_dir: Path = APP_DIR,
) -> RunResult:
    """Run one configuration to its end.

    Parameters
    ----------
    run_config : mapping
        Complete and checked, with an absolute ``results-dir`` and a ``run-name``.
    options : Options
        Size of the simulation.
    superlink : LocalSuperLink, optional
        An open one to use; by default one of its own, closed afterwards.
    listener : Listener, optional
        Is told about every round.
    app_dir : Path
        Folder of the Flower app.

    Returns
    -------
    RunResult
        ``completed`` or ``failed``.

    Raises
    ------
    KeyboardInterrupt
        After the superlink was closed and ``stopped`` written into status.json.
    """
    folder = results_folder(run_config)
    files = RunFiles(folder)
    listener = listener or Silent()
    begin = time.monotonic()
    listener.start(int(run_config["num-server-rounds"]))
    try:
        with _opened(superlink) as link:
            try:
                job = link.run(app_dir, run_config, options.federation(), folder / "flwr.log")
                died = _follow(job, link, files, listener)
            except KeyboardInterrupt:
                listener.state({"status": "stopped"})
                link.close()  # first, or the server might have the last word
                files.end("stopped", "interrupted by the user")
                raise
    finally:
        listener.stop()
    files.end("failed", died or _reason(folder))
    status = files.status()
    return RunResult(
        folder=folder,
        status=status["status"],
        rounds=status["rounds"],
        reason=status["reason"],
        seconds=time.monotonic() - begin,
        rows=files.rows,
    )


@contextlib.contextmanager
def _opened(superlink: Link | None) -> Iterator[Link]:
    if superlink is not None:
        yield superlink
        return
    with LocalSuperLink() as own:
        yield own


def _follow(job: subprocess.Popen[bytes], link: Link, files: RunFiles, listener: Listener) -> str:
    """Pass on what the run writes until it ends; why, if its process vanished, else ''."""
    watch = _Watch(link)
    while True:
        over = job.poll() is not None  # asked before reading, so that no line is missed
        for row in files.new_rows():
            listener.round(row)
        status = files.status()
        listener.state(status)
        verdict = "" if over else watch.verdict(status.get("status") in ENDED)
        if verdict is not None:
            send(job.pid, signal.SIGTERM)
            job.wait()
            return verdict
        time.sleep(POLL_SECONDS)


class _Watch:
    """Notices that a run is over although ``flwr run`` has not: it needs 60 s for a killed one."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._earlier = set(link.simulations())  # of the run before, about to end
        self._looked = time.monotonic()
        self._seen = False
        self._absent = 0
        self._deadline = 0.0

    def verdict(self, ended: bool) -> str | None:
        """None to go on waiting, '' when the end has been given time, else what went wrong."""
        now = time.monotonic()
        if ended:
            self._deadline = self._deadline or now + GRACE_SECONDS
            return "" if now > self._deadline else None
        if now - self._looked > WATCH_SECONDS:
            self._looked = now
            self._look()
        return VANISHED if self._absent >= 2 else None  # twice: its log may be on the way

    def _look(self) -> None:
        present = bool(set(self._link.simulations()) - self._earlier)
        self._seen |= present
        self._absent = 0 if present or not self._seen else self._absent + 1


def _reason(folder: Path) -> str:
    errors = read_errors(folder / "flwr.log")
    return errors[-1] if errors else "flwr run ended before the run did, without a word"
