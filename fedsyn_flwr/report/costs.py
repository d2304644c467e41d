"""What a method costs its clients and the wire, from results folders: means over seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from fedsyn_flwr.report.aggregate import Stat, stat
from fedsyn_flwr.report.columns import Cells, csv_table, markdown_lines
from fedsyn_flwr.report.curves import Run, labels
from fedsyn_flwr.report.measures import Rows, total
from fedsyn_flwr.report.progress import human_bytes, human_count
from fedsyn_flwr.report.table import NONE, Origin, made, plus_minus

WORK = ("flops", "client_seconds")
"""Kinds of cost that metrics.jsonl splits into phases."""
COSTS = (*(f"{kind}/" for kind in WORK), "bytes/", "memory/")
REPORT = "privacy"
"""The phase that looks at a method's images and is no part of the method."""

NOTES = (
    "FLOPs (a multiply-add is two) and seconds are those of one client in one round it takes part "
    "in; phases that not every round has are spread over all rounds. Bytes are one round's, all "
    "clients together. Peaks are the largest of any process.",
    f"`x` is the ratio to the first row, of all phases but `{REPORT}`: the privacy report measures "
    "the method's images and is no part of the method. Means over n seeds, seconds ± sample "
    f"standard deviation ({NONE} for one).",
)


@dataclass(frozen=True)
class CostRow:
    """A row of the table: the runs that differ in nothing but the seed.

    Attributes
    ----------
    label : str
        What sets them apart from the other rows.
    n : int
        How many there are.
    costs : dict
        See `costs`.
    relative : dict
        ``flops`` and ``client_seconds`` over those of the first row, where both were measured.
    """

    label: str
    n: int
    costs: dict[str, Stat]
    relative: dict[str, float]


def costs(rows: Rows) -> dict[str, float]:
    """What a run's rounds cost, under the names of metrics.jsonl.

    Bytes, ``flops/PHASE`` and ``client_seconds/PHASE`` are means over all rounds, those without
    the phase counted as 0; memory is the maximum. ``flops`` and ``client_seconds`` alone are the
    sums over the phases but the privacy report.
    """
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(COSTS))
    found: dict[str, float] = {}
    for name in names:
        if name.startswith("memory/"):
            found[name] = max(float(row.get(name) or 0) for row in rows)
        else:
            found[name] = total(rows, name) / len(rows)
    for kind in WORK:
        own = [found[f"{kind}/{phase}"] for phase in phases(names, kind) if phase != REPORT]
        if own:
            found[kind] = sum(own)
    return found


def phases(names: Mapping[str, object], kind: str) -> list[str]:
    """The phases of one kind of cost: training, then by name, the privacy report last."""
    found = {name.removeprefix(f"{kind}/") for name in names if name.startswith(f"{kind}/")}
    return sorted(found, key=lambda phase: (phase == REPORT, phase != "training", phase))


def cost_rows(groups: Sequence[Sequence[Run]]) -> list[CostRow]:
    """One row per group, in order."""
    rows = [_row(label, group) for label, group in zip(labels(groups), groups, strict=True)]
    return [replace(row, relative=_relative(row, rows[0])) for row in rows]


def _row(label: str, group: Sequence[Run]) -> CostRow:
    each = [costs(run.rows) for run in group]
    names = dict.fromkeys(name for one in each for name in one)
    stats = {name: stat(one.get(name) for one in each) for name in names}
    return CostRow(label, len(group), {n: s for n, s in stats.items() if s is not None}, {})


def _relative(row: CostRow, first: CostRow) -> dict[str, float]:
    shared = [k for k in WORK if k in row.costs and k in first.costs and first.costs[k].mean]
    return {kind: row.costs[kind].mean / first.costs[kind].mean for kind in shared}


def cells(rows: Sequence[CostRow]) -> Cells:
    """Headers and rows of text; the first column is the row's name."""
    names = dict.fromkeys(name for row in rows for name in row.costs)
    columns: list[tuple[str, Callable[[CostRow], str]]] = [("", lambda row: row.label)]
    columns.append(("n", lambda row: str(row.n)))
    for kind, unit, form in ((WORK[0], "FLOPs", _count), (WORK[1], "s", _seconds)):
        for phase in phases(names, kind):
            columns.append((f"{phase} {unit}", _column(f"{kind}/{phase}", form)))
        columns.append((f"x {unit}", lambda row, kind=kind: _ratio(row, kind)))  # type: ignore[misc]
    columns += [(way, _column(f"bytes/{way}", _bytes)) for way in ("down", "up")]
    for name in sorted(name for name in names if name.startswith("memory/")):
        shown = name.removeprefix("memory/").removesuffix("_mb").replace("_", " ")
        columns.append((shown, _column(name, _megabytes)))
    return [header for header, _ in columns], [[f(row) for _, f in columns] for row in rows]


def _column(name: str, form: Callable[[Stat], str]) -> Callable[[CostRow], str]:
    return lambda row: form(row.costs[name]) if name in row.costs else NONE


def _count(value: Stat) -> str:
    return human_count(value.mean)


def _seconds(value: Stat) -> str:
    return plus_minus(value, ".3f")


def _bytes(value: Stat) -> str:
    return human_bytes(value.mean)


def _megabytes(value: Stat) -> str:
    return human_bytes(value.mean * 1e6)


def _ratio(row: CostRow, kind: str) -> str:
    return f"{row.relative[kind]:.2f}" if kind in row.relative else NONE


def markdown(rows: Sequence[CostRow], origin: Origin) -> str:
    """The table, how to read it, and how it was made."""
    return "\n".join([*markdown_lines(cells(rows), 1), "", *NOTES, "", *made(origin)]) + "\n"


def csv_text(groups: Sequence[Sequence[Run]]) -> str:
    """A line per run, costs under the names of metrics.jsonl."""
    lines = [
        {"method": label, "seed": run.config.get("seed"), **costs(run.rows), "folder": run.folder}
        for label, group in zip(labels(groups), groups, strict=True)
        for run in group
    ]
    return csv_table(lines)


def json_text(rows: Sequence[CostRow], origin: Origin) -> str:
    """Rows and origin."""
    content = {**asdict(origin), "rows": [asdict(row) for row in rows]}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
