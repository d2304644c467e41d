"""From runs to the rows of a table: means and deviations over seeds, as pure functions."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedsyn_flwr.config import Scalar
from fedsyn_flwr.report import measures
from fedsyn_flwr.report.measures import Rows

Setting = tuple[tuple[str, Scalar], ...]
"""Keys and values a grid varies beside method and seed."""

ABSENT = "–"
"""The value of a key that a row's method does not have."""


@dataclass(frozen=True)
class Record:
    """One run of a grid, as its folder tells it.

    ``status`` is that of status.json, or ``waiting`` for a run not begun.
    """

    name: str
    conf: str
    method: str
    setting: Setting
    seed: int
    folder: Path
    status: str = "waiting"
    reason: str = ""
    rows: Rows = field(default_factory=list)

    @property
    def group(self) -> tuple[str, str, Setting]:
        """All that runs of different seeds have in common."""
        return self.conf, self.method, self.setting

    @property
    def completed(self) -> bool:
        """Whether all rounds were run."""
        return self.status == "completed"

    @property
    def seconds_per_round(self) -> float | None:
        """Mean over the rounds."""
        return measures.seconds(self.rows) / len(self.rows) if self.rows else None


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (ddof = 1; None for a single value) of n values."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class GroupRow:
    """A row of the table: the completed runs of one (conf, method, setting).

    Attributes
    ----------
    seeds, n : int
        Runs wanted, and completed; all figures are over the n.
    target : Stat or None
        Rounds to the target accuracy, over the ``reached`` runs that got there.
    relative : float or None
        Seconds per round over those of the row it is compared with.
    measured : dict
        Of what the method measured beside, as `measures.measured` has it.
    """

    conf: str
    method: str
    setting: Setting
    seeds: int
    n: int
    final: Stat | None
    recent: Stat | None
    best: Stat | None
    target: Stat | None
    reached: int
    down: Stat | None
    up: Stat | None
    seconds_per_round: Stat | None
    seconds: Stat | None
    measured: dict[str, Stat]
    relative: float | None = None


def stat(values: Iterable[float | None]) -> Stat | None:
    """Of the values that are there; None if none is."""
    held = [float(value) for value in values if value is not None]
    if not held:
        return None
    std = statistics.stdev(held) if len(held) > 1 else None
    return Stat(statistics.fmean(held), std, len(held))


def group_rows(records: Sequence[Record], target: float) -> list[GroupRow]:
    """One row per group, in the order of their first runs.

    Parameters
    ----------
    records : sequence of Record
        All runs of a grid.
    target : float
        Test accuracy, in [0, 1], whose first round is looked for.
    """
    groups: dict[tuple[str, str, Setting], list[Record]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    rows = [_row(group, target) for group in groups.values()]
    return [_compared(row, rows) for row in rows]


def _row(runs: Sequence[Record], target: float) -> GroupRow:
    done = [run for run in runs if run.completed]
    conf, method, setting = runs[0].group

    def over(function: Callable[[Rows], float | None]) -> Stat | None:
        return stat(function(run.rows) for run in done)

    reached = over(lambda rows: measures.rounds_to(rows, target))
    return GroupRow(
        conf=conf,
        method=method,
        setting=setting,
        seeds=len(runs),
        n=len(done),
        final=over(measures.final),
        recent=over(measures.recent),
        best=over(measures.best),
        target=reached,
        reached=reached.n if reached else 0,
        down=over(lambda rows: measures.traffic(rows)[0]),
        up=over(lambda rows: measures.traffic(rows)[1]),
        seconds_per_round=stat(run.seconds_per_round for run in done),
        seconds=over(measures.seconds),
        measured=_measured(done),
    )


def _measured(runs: Sequence[Record]) -> dict[str, Stat]:
    values = [measures.measured(run.rows) for run in runs]
    keys = sorted({key for each in values for key in each})
    stats = {key: stat(each.get(key) for each in values) for key in keys}
    return {key: found for key, found in stats.items() if found}


def _agree(a: GroupRow, b: GroupRow) -> bool:
    """Whether two rows have the same values of the keys that both methods have."""
    pairs = zip(a.setting, b.setting, strict=True)
    return all(x == y or ABSENT in (x[1], y[1]) for x, y in pairs)


def _compared(row: GroupRow, rows: Sequence[GroupRow]) -> GroupRow:
    """Relate its cost per round to the first method's; with one method, to the first row's."""
    one_method = len({other.method for other in rows}) == 1
    alike = (o for o in rows if one_method or (o.conf == row.conf and _agree(o, row)))
    base = next(alike).seconds_per_round
    if base is None or row.seconds_per_round is None or base.mean == 0:
        return row
    return replace(row, relative=row.seconds_per_round.mean / base.mean)
