"""Show a run while it runs: a live line on a terminal, plain lines elsewhere."""

import sys
from typing import TYPE_CHECKING, Protocol, TextIO

from fedsyn_flwr.report.progress import HEADER, Row, phase_text, round_line, rounds_done

if TYPE_CHECKING:
    from rich.progress import Progress


class Listener(Protocol):
    """Who is told about a run: started, then rounds and states as they come, then ended."""

    def start(self, rounds: int) -> None:
        """The run is about to be submitted."""

    def round(self, row: Row) -> None:
        """A round has finished."""

    def state(self, status: Row) -> None:
        """The present contents of status.json, {} at first; called several times a second."""

    def stop(self) -> None:
        """The run has ended, in whatever way."""


class Silent:
    """A listener that shows nothing."""

    def start(self, rounds: int) -> None:
        """Nothing."""

    def round(self, row: Row) -> None:
        """Nothing."""

    def state(self, status: Row) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Plain(Silent):
    """One line per round, written out at once: for files, pipes and CI logs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._rounds = 0

    def start(self, rounds: int) -> None:
        """Write the header of the columns."""
        self._rounds = rounds
        print(HEADER, file=self._out, flush=True)

    def round(self, row: Row) -> None:
        """Write the round's line."""
        print(round_line(row, self._rounds), file=self._out, flush=True)


class Live(Silent):
    """The same lines above a bar with the phase the run is in."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._rounds = 0

    def start(self, rounds: int) -> None:
        """Show the header of the columns and the bar."""
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._rounds = rounds
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            transient=True,
        )
        self._progress.start()
        self._progress.add_task(phase_text({}, rounds), total=rounds)
        self._print(HEADER)

    def round(self, row: Row) -> None:
        """Print the round's line above the bar."""
        self._print(round_line(row, self._rounds))

    def state(self, status: Row) -> None:
        """Move the bar."""
        if self._progress is not None:
            task = self._progress.task_ids[0]
            text = phase_text(status, self._rounds)
            self._progress.update(task, description=text, completed=rounds_done(status))

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _print(self, line: str) -> None:
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def for_terminal() -> Listener:
    """``Live`` where standard output is a terminal, else ``Plain``."""
    return Live() if sys.stdout.isatty() else Plain()
