"""Find and end everything a child process started, by process id.

Ray's daemons and actors leave their parent's session and outlive it, so a process group is not
enough; ending by name would hit other people's. Children are started with a mark in their
environment, which theirs inherit.
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """One running process; ``start`` tells it from a later one with the same pid."""

    pid: int
    parent: int
    start: str
    words: str
    """Command line and, where the system shows it, environment."""


class Family:
    """All processes that carry one mark, and whatever they started.

    Parameters
    ----------
    mark : str, optional
        Of a family there is already; by default a new one.

    Attributes
    ----------
    environment : dict
        To be added to the environment of each child.
    """

    KEY = "FEDSYN_FAMILY"

    def __init__(self, mark: str = "") -> None:
        mark = mark or uuid.uuid4().hex
        self.mark = mark
        self.environment = {self.KEY: mark}
        self._needle = f"{self.KEY}={mark}"
        self._known: set[tuple[int, str]] = set()

    def alive(self) -> list[Process]:
        """Members now running, zombies aside.

        Ray's workers overwrite their environment with a title, so a member's children count as
        members too, and a member once seen stays one when its parent is gone.
        """
        found: dict[int, Process] = {}
        rest = list(processes())
        while new := [p for p in rest if self._belongs(p, found)]:
            found.update({p.pid: p for p in new})
            rest = [p for p in rest if p.pid not in found]
        self._known |= {(p.pid, p.start) for p in found.values()}
        return list(found.values())

    def _belongs(self, process: Process, found: dict[int, Process]) -> bool:
        return (
            self._needle in process.words
            or process.parent in found
            or (process.pid, process.start) in self._known
        )

    def end(self, patience: float = 2.0) -> None:
        """SIGTERM to all members, SIGKILL to what is left after ``patience`` seconds."""
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while members := self.alive():
            late = time.monotonic() > deadline
            for pid in [p.pid for p in members if late or p.pid not in told]:
                send(pid, signal.SIGKILL if late else signal.SIGTERM)
            told.update(p.pid for p in members)
            time.sleep(0.05)


def send(pid: int, number: int) -> None:
    """Signal a process that may have ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def processes() -> Iterator[Process]:
    """Every process of this user but ourselves; zombies left out."""
    table = _from_proc() if (PROC / "self" / "stat").exists() else _from_ps()
    return (process for process in table if process.pid != os.getpid())


def _from_proc() -> Iterator[Process]:
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # the name, in brackets, may hold anything; fields after it: state, parent, …
            stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes() + b" " + (folder / "environ").read_bytes()
        except OSError:  # ended meanwhile, or someone else's
            continue
        if stat[0] != "Z":
            text = words.replace(b"\0", b" ").decode(errors="replace")
            yield Process(int(folder.name), int(stat[1]), stat[19], text)


def _from_ps() -> Iterator[Process]:
    """macOS and BSD: `e` shows the environment after the command, `lstart` is five words."""
    command = ["ps", "axeww", "-o", "pid=,ppid=,stat=,lstart=,command="]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        fields = line.split(None, 8)
        if len(fields) == 9 and not fields[2].startswith("Z"):
            yield Process(int(fields[0]), int(fields[1]), " ".join(fields[3:8]), fields[8])
