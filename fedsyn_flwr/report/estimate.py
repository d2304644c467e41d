"""How long a grid still needs: from finished rounds and runs, as pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsyn_flwr.report import measures

OVER = ("finished", "completed", "failed", "stopped")


@dataclass
class Line:
    """What is known of one run of a grid while the grid runs.

    Attributes
    ----------
    kind : tuple
        Conf, method and setting: runs alike in more of these take more alike times.
    total : int
        Rounds it is to have.
    state : str
        ``waiting``, ``running``, ``finished`` (before this grid), or how it ended.
    done : float
        Rounds done, the present one's share included.
    pace : list of float
        Seconds of each round whose end was seen.
    seconds : float
        Wall time so far.
    """

    name: str
    kind: tuple[Any, ...]
    total: int
    state: str = "waiting"
    done: float = 0.0
    accuracy: float | None = None
    pace: list[float] = field(default_factory=list)
    seconds: float = 0.0
    reason: str = ""
    phase: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in OVER


def seconds_left(line: Line, lines: Sequence[Line]) -> float | None:
    """Seconds until a run ends, None while nothing is known.

    Its own rounds tell the pace; before there are any, those of the runs most like it.
    """
    if line.over:
        return 0.0
    pace = measures.mean(line.pace)
    if pace is None:
        pace = measures.mean(each for other in _most_alike(line, lines) for each in other.pace)
    if pace is None:
        return None
    start = 0.0 if line.pace else max(0.0, (overhead(lines) or 0.0) - line.seconds)
    return start + pace * max(0.0, line.total - line.done)


def grid_seconds_left(lines: Sequence[Line]) -> float | None:
    """Seconds until the last run ends."""
    left = [seconds_left(line, lines) for line in lines]
    return None if None in left else sum(each for each in left if each is not None)


def overhead(lines: Sequence[Line]) -> float | None:
    """Mean wall time of a run beyond its rounds, of those run to their end by this grid."""
    ended = [line for line in lines if line.state == "completed" and line.seconds]
    return measures.mean(line.seconds - sum(line.pace) for line in ended)


def _most_alike(line: Line, lines: Sequence[Line]) -> list[Line]:
    """Runs with a pace whose kind agrees in the most parts."""
    known = [(_agreement(line, other), other) for other in lines if other.pace]
    most = max((agreement for agreement, _ in known), default=0)
    return [other for agreement, other in known if agreement == most]


def _agreement(one: Line, other: Line) -> int:
    return sum(a == b for a, b in zip(one.kind, other.kind, strict=True))


def human_seconds(seconds: float | None) -> str:
    """``45 s``, ``3 min 20 s``, ``1 h 05 min``; ``?`` for what is not known."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
