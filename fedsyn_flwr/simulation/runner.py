"""Run the app through ``flwr run`` on a SuperLink of our own and report how it really ended.

``fedsyn run`` and ``fedsyn demo`` are thin shells around ``execute``. ``flwr run`` exits 0
whatever happened, so the server's status.json is what counts.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from fedsyn_flwr.config import APP_DIR, RunConfig
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.console import Listener, Silent
from fedsyn_flwr.report.failure import read_errors
from fedsyn_flwr.report.files import read_status
from fedsyn_flwr.report.progress import ENDED, RunFiles
from fedsyn_flwr.report.run_result import RunResult
from fedsyn_flwr.simulation.processes import send
from fedsyn_flwr.simulation.resolve import Options, results_folder
from fedsyn_flwr.simulation.superlink import LocalSuperLink

Job = subprocess.Popen[bytes]

POLL_SECONDS = 0.2
WATCH_SECONDS = 2.0  # between two looks at the process table
GRACE_SECONDS = 15.0  # for the log of a run that ended early
VANISHED = "the simulation's process was killed (out of memory?)"


class Link(Protocol):
    """What ``execute`` needs of a LocalSuperLink."""

    def run(self, app_dir: Path, run_config: RunConfig, federation: RunConfig, log: Path) -> Job:
        """Submit a run."""

    def simulations(self) -> list[int]:
        """Process ids of the running simulations."""

    def ahead(self) -> None:
        """Prepare for another run, if there is anything to prepare."""

    def trouble(self) -> str:
        """What of it has died; '' while all is well."""

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
        ``completed`` or ``failed``. A run that could not be resumed has failed although its
        status.json keeps an earlier attempt's last word.

    Raises
    ------
    KeyboardInterrupt
        After the superlink was closed and ``stopped`` written into status.json.
    UserError
        If another process is at this run.
    """
    begin, folder = time.monotonic(), results_folder(run_config)
    listener = listener or Silent()
    listener.start(int(run_config["num-server-rounds"]))
    try:
        with claimed(folder), _opened(superlink, options) as link:
            files, log = RunFiles(folder), folder / "flwr.log"
            log_start = log.stat().st_size if log.is_file() else 0
            try:
                job = link.run(app_dir, run_config, options.federation(), log)
                died = _follow(job, link, files, listener)
            except KeyboardInterrupt:
                listener.state({"status": "stopped"})
                link.close()  # first, or the server might have the last word
                files.end("stopped", "interrupted by the user")
                raise
    finally:
        listener.stop()
    status = _last_word(files, died or _reason(log, log_start))
    seconds = time.monotonic() - begin
    return RunResult(folder, **status, seconds=seconds, rows=files.rows, log_start=log_start)


def _last_word(files: RunFiles, reason: str) -> dict[str, Any]:
    """Status, rounds and reason; the run has failed if this attempt's server gave none."""
    files.end("failed", reason)
    rounds = read_status(files.folder).get("rounds", 0)
    silent = {"status": "failed", "rounds": rounds, "reason": reason}
    status = files.status() or silent
    return {key: status[key] for key in silent}


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes off a run's folder; the claim ends with this process at the latest."""
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:  # an OSError, too
        raise UserError(f"{folder} is being written by another fedsyn: wait for it") from None
    except OSError as error:
        raise UserError(
            f"results-dir {folder.parent} cannot be written: {error.strerror}; choose another"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _opened(superlink: Link | None, options: Options) -> Iterator[Link]:
    if superlink is not None:
        yield superlink
        return
    with LocalSuperLink(options.cpus, wait=False) as own:
        yield own


def _follow(job: Job, link: Link, files: RunFiles, listener: Listener) -> str:
    """Pass on what the run writes until it ends; why, if its process vanished, else ''."""
    watch = _Watch(link)
    while True:
        over = job.poll() is not None  # asked before reading, so that no line is missed
        status = files.status()
        for row in files.new_rows():  # read after the status: none comes after the last word
            listener.round(row)
        listener.state(status)
        verdict = "" if over else watch.verdict(status.get("status", ""))
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

    def verdict(self, status: str) -> str | None:
        """None to go on waiting, '' at the end, else what went wrong.

        All of a completed run is on disk; the log of one that ended otherwise is worth a wait.
        """
        now = time.monotonic()
        self._seen |= bool(status)  # who has spoken was there, however short
        if status == "completed":
            return ""
        if status in ENDED:
            self._deadline = self._deadline or now + GRACE_SECONDS
            return "" if now > self._deadline else None
        if now - self._looked > WATCH_SECONDS:
            self._looked = now
            return self._look()
        return None

    def _look(self) -> str | None:
        """What is wrong with the processes, None if nothing is."""
        if trouble := self._link.trouble():
            return trouble
        present = bool(set(self._link.simulations()) - self._earlier)
        self._seen |= present
        self._absent = 0 if present or not self._seen else self._absent + 1
        return VANISHED if self._absent >= 2 else None  # twice: its log may be on the way


def _reason(log: Path, start: int) -> str:
    errors = read_errors(log, start)
    return errors[-1] if errors else "flwr run ended before the run did, without a word"
