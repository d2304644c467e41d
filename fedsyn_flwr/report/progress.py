"""Read a run's results folder while the run is writing it, and put it into words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsyn_flwr.files import write_whole
from fedsyn_flwr.report.files import read_lines, read_status
from fedsyn_flwr.report.measures import value

Row = Mapping[str, Any]
Stamp = tuple[int, int, int]

ENDED = ("completed", "failed", "stopped")
HEADER = " round  accuracy  test loss  train loss   seconds       down         up"


class RunFiles:
    """``status.json`` and ``metrics.jsonl`` of one run, re-read on demand.

    What an earlier attempt at the run left there is told from what this one writes: its status
    counts for nothing, its rounds are not new.

    Attributes
    ----------
    rows : list of dict
        The rounds read so far, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self._earlier = _stamp(self._status_file)
        self._read: Stamp | None = None
        self._known = set(read_lines(self.folder))

    @property
    def _status_file(self) -> Path:
        return self.folder / "status.json"

    @property
    def stale(self) -> bool:
        """Whether status.json is still an earlier attempt's."""
        return self._earlier is not None and _stamp(self._status_file) == self._earlier

    def status(self) -> dict[str, Any]:
        """status.json, or {} before this attempt's first word."""
        return {} if self.stale else read_status(self.folder)

    def new_rows(self) -> list[Row]:
        """Rounds written since the last call; a half-written line waits for the next one.

        A resumed run first drops rounds after its checkpoint: the file is read as a whole
        whenever it has changed, and ``rows`` is what it holds.
        """
        stamp = _stamp(self.folder / "metrics.jsonl")
        if stamp == self._read or self.stale:
            return []
        self._read = stamp
        lines = read_lines(self.folder)
        new = [line for line in lines if line not in self._known]
        self._known.update(new)
        self.rows = [json.loads(line) for line in lines]
        return [json.loads(line) for line in new]

    def end(self, status: str, reason: str) -> None:
        """Write the last word of a run whose server can no longer do it.

        A run that has ended already, in this attempt or an earlier one, or never began to write,
        is left alone.
        """
        old = read_status(self.folder)
        if old.get("status") in ENDED or not self.folder.is_dir():
            return
        new = {"status": status, "rounds": old.get("rounds", 0), "reason": reason}
        write_whole(self._status_file, json.dumps(new) + "\n")


def _stamp(path: Path) -> Stamp | None:
    """Tells a file from what it is replaced by; None while there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def human_bytes(count: float) -> str:
    """Three digits and a decimal unit: ``1_500_000`` → ``1.50 MB``."""
    return _scaled(count, "B", "kB", "MB", "GB", "TB")


def human_count(count: float) -> str:
    """The same for things without a unit: ``76_480_588`` → ``76.5 M``."""
    return _scaled(count, "", "k", "M", "G", "T", "P").rstrip()


def _scaled(count: float, *units: str) -> str:
    left = list(units)
    while count >= 999.5 and len(left) > 1:
        count /= 1000
        left.pop(0)
    digits = 0 if left[0] == units[0] or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {left[0]}"


def number(value: Any, digits: int) -> str:
    """A figure, or a dash for one that was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def round_line(row: Row, rounds: int) -> str:
    """One finished round below ``HEADER``.

    Parameters
    ----------
    row : mapping
        A line of metrics.jsonl.
    rounds : int
        Rounds the run is to have.
    """
    place = f"{row['round']}/{rounds}"
    line = (
        f"{place:>6}  {number(value(row, 'server/test_accuracy'), 4):>8}"
        f"  {number(value(row, 'server/test_loss'), 4):>9}"
        f"  {number(row.get('clients/train_loss'), 4):>10}"
        f"  {number(row.get('seconds/round'), 1):>8}"
        f"  {human_bytes(row.get('bytes/down', 0)):>9}  {human_bytes(row.get('bytes/up', 0)):>9}"
    )
    return "  ".join([line, *_remarks(row)])


def _remarks(row: Row) -> list[str]:
    """What a reader should know about this round beyond the columns."""
    remarks = []
    if row.get("seconds/synthesis"):
        remarks.append(f"synthesis {row['seconds/synthesis']:.1f} s")
    if failed := row.get("clients/failed"):
        remarks.append(f"{failed:.0f} client{'s' if failed != 1 else ''} failed")
    return remarks


def phase_text(status: Row, rounds: int) -> str:
    """What the run is doing now: ``round 3/20: training, 4 of 10 clients``."""
    phase = status.get("phase")
    if status.get("status") in ENDED:
        return "closing down"
    if phase is None:
        return "starting the simulation"
    if phase == "start":
        return "starting the server"
    place = f"round {status['round']}/{rounds}: " if status.get("round") else ""
    return f"{place}{phase}{_share(status)}"


def _share(status: Row) -> str:
    """How many of the expected replies have come, where there are several."""
    total = status.get("total", 0)
    noun = "" if "clients" in status["phase"] else " clients"
    return f", {status.get('done', 0)} of {total}{noun}" if total > 1 else ""


def rounds_done(status: Row) -> float:
    """Rounds completed, the current phase's replies counted as a part of one."""
    total = status.get("total", 0)
    share = status.get("done", 0) / total if total and status.get("phase") == "training" else 0.0
    return float(status.get("rounds", 0)) + min(share, 0.99)
