"""Read a run's results folder while the run is writing it, and put it into words."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

ENDED = ("completed", "failed", "stopped")
HEADER = " round  accuracy  test loss  train loss   seconds       down         up"


class RunFiles:
    """``status.json`` and ``metrics.jsonl`` of one run, re-read on demand.

    Attributes
    ----------
    rows : list of dict
        The rounds read so far, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self._offset = 0

    def status(self) -> dict[str, Any]:
        """status.json, or {} while there is none."""
        try:
            return dict(json.loads((self.folder / "status.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}

    def new_rows(self) -> list[Row]:
        """Rounds appended since the last call; a half-written line waits for the next one."""
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return []
        self._offset += len(whole + newline)
        new = [json.loads(line) for line in whole.splitlines() if line.strip()]
        self.rows += new
        return new

    def end(self, status: str, reason: str) -> None:
        """Write the last word of a run whose server can no longer do it.

        A run that has ended already, or never began to write, is left alone.
        """
        old = self.status()
        if old.get("status") in ENDED or not self.folder.is_dir():
            return
        new = {"status": status, "rounds": old.get("rounds", 0), "reason": reason}
        part = self.folder / "status.json.part"
        part.write_text(json.dumps(new) + "\n", encoding="utf-8")
        os.replace(part, self.folder / "status.json")


def human_bytes(count: float) -> str:
    """Three digits and a decimal unit: ``1_500_000`` → ``1.50 MB``."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {units[0]}"


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
        f"{place:>6}  {number(row.get('server/test_accuracy'), 4):>8}"
        f"  {number(row.get('server/test_loss'), 4):>9}"
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
