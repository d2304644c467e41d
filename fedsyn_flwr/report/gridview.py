"""Show a grid of runs while it runs: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from fedsyn_flwr.report.console import Silent
from fedsyn_flwr.report.estimate import Line, grid_seconds_left, human_seconds, seconds_left
from fedsyn_flwr.report.measures import ACCURACY, value
from fedsyn_flwr.report.progress import Row, number, phase_text, rounds_done

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

PROGRESS_SECONDS = 30.0  # between two plain lines about the same run
MARGIN = 9  # of a terminal's lines that are not the table's
COLOURS = {"completed": "green", "finished": "green", "running": "bold", "failed": "red"}


class Watcher(Protocol):
    """Whoever shows a grid."""

    def changed(self, line: Line) -> None:
        """Something about this run is new; called several times a second while it runs."""


class LineListener(Silent):
    """Keeps one line of a grid up to date with its run.

    ``at_ease`` is called after each round: the start with its haste is over then.
    """

    def __init__(
        self, line: Line, watcher: Watcher, at_ease: Callable[[], None] | None = None
    ) -> None:
        self._line = line
        self._watcher = watcher
        self._at_ease = at_ease
        self._begin = 0.0

    def start(self, rounds: int) -> None:
        """The run is about to be submitted."""
        self._begin = time.monotonic()
        self._line.state = "running"
        self._line.done = 0.0  # of an earlier attempt, until the server says what is kept
        self.state({})

    def round(self, row: Row) -> None:
        """A round has finished."""
        if row.get("seconds/round") is not None:
            self._line.pace.append(row["seconds/round"])
        accuracy = value(row, ACCURACY)
        if accuracy is not None:
            self._line.accuracy = accuracy
        if self._at_ease is not None:
            self._at_ease()

    def state(self, status: Row) -> None:
        """The run's status.json."""
        self._line.seconds = time.monotonic() - self._begin
        if status:
            self._line.done = rounds_done(status)
        self._line.phase = phase_text(status, self._line.total)
        self._watcher.changed(self._line)


class PlainGrid:
    """A line when a run starts and ends, and every half minute in between."""

    def __init__(self, lines: Sequence[Line], out: TextIO | None = None) -> None:
        self._lines = lines
        self._out = out or sys.stdout
        self._shown: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> "PlainGrid":
        finished = sum(line.state == "finished" for line in self._lines)
        if finished:
            self._print(f"{finished} of {len(self._lines)} runs were finished before")
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to take away."""

    def changed(self, line: Line) -> None:
        """Write where the run is, unless that was said just now."""
        now = time.monotonic()
        state, said = self._shown.get(line.name, ("waiting", now))
        if state == line.state and now - said < PROGRESS_SECONDS:
            return
        self._shown[line.name] = (line.state, now)
        place = f"[{self._lines.index(line) + 1}/{len(self._lines)}] {line.name}"
        self._print(f"{place}: {sentence(line, self._lines, started=state != line.state)}")

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def sentence(line: Line, lines: Sequence[Line], started: bool = False) -> str:
    """One run in words."""
    if line.state == "running" and started:
        return "starts"
    left = human_seconds(grid_seconds_left(lines))
    if line.state == "running":
        return f"{line.phase}, accuracy {number(line.accuracy, 4)}, {left} left for all"
    reason = f": {line.reason}" if line.reason else ""
    ended = f"{line.state} after {line.done:.0f} rounds{reason}"
    return (
        f"{ended}, accuracy {number(line.accuracy, 4)}, {line.seconds:.1f} s; {left} left for all"
    )


class LiveGrid:
    """A table with a row per run, redrawn in place."""

    def __init__(self, lines: Sequence[Line], console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._lines = lines
        self._current = lines[0] if lines else None
        self._console = console or Console()
        self._live = Live(
            console=self._console, get_renderable=self.drawn, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> "LiveGrid":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the table away; the results' table follows."""
        self._live.stop()

    def changed(self, line: Line) -> None:
        """Remember which run is on."""
        self._current = line

    def drawn(self) -> "Group":
        """The table and what is going on, as they are now."""
        from rich.console import Group
        from rich.text import Text

        over = sum(line.over for line in self._lines)
        left = human_seconds(grid_seconds_left(self._lines))
        phase = self._current.phase if self._current and self._current.state == "running" else ""
        state = f"{over} of {len(self._lines)} runs ended, {left} left"
        return Group(self._table(), Text("  ".join(part for part in (state, phase) if part)))

    def _table(self) -> "Table":
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("run", "state", "round", "accuracy", "seconds", "left"):
            table.add_column(name, justify="left" if name in ("run", "state") else "right")
        height = max(3, self._console.height - MARGIN)
        for line in window(self._lines, self._current, height):
            table.add_row(*_cells(line, self._lines), style=COLOURS.get(line.state, "dim"))
        return table


def _cells(line: Line, lines: Sequence[Line]) -> list[str]:
    left = "" if line.over else human_seconds(seconds_left(line, lines))
    seconds = f"{line.seconds:.0f}" if line.seconds else ""
    place = f"{line.done:.0f}/{line.total}" if line.done or line.state != "waiting" else ""
    return [line.name, line.state, place, number(line.accuracy, 4), seconds, left]


def window(lines: Sequence[Line], current: Line | None, height: int) -> Sequence[Line]:
    """As many neighbours of the current run as there is room for, those to come preferred."""
    if len(lines) <= height:
        return lines
    place = lines.index(current) if current in lines else 0
    first = min(max(0, place - height // 3), len(lines) - height)
    return lines[first : first + height]


def for_terminal(lines: Sequence[Line]) -> PlainGrid | LiveGrid:
    """``LiveGrid`` where standard output is a terminal, else ``PlainGrid``."""
    return LiveGrid(lines) if sys.stdout.isatty() else PlainGrid(lines)
