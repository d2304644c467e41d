"""What the page says, read from runs' folders; nothing here knows of HTML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedsyn_flwr import __version__
from fedsyn_flwr.files import ANSI
from fedsyn_flwr.report import curves, measures
from fedsyn_flwr.report.curves import Run
from fedsyn_flwr.report.failure import read_errors
from fedsyn_flwr.report.files import read_json, read_status
from fedsyn_flwr.report.machine import joined_versions
from fedsyn_flwr.report.page import charts, compared
from fedsyn_flwr.report.page.charts import Chart
from fedsyn_flwr.report.table import scalar

WARNING = re.compile(r"^WARNING\s*:\s*(.+)$")
MOST_WARNINGS = 10
UNSHOWN = {"results-dir", "run-name", "state-dir", "resume"}


@dataclass(frozen=True)
class Outcome:
    """What became of one run, and what its log complains of."""

    name: str
    method: str
    seed: str
    status: str
    rounds: int
    wanted: int
    reason: str
    final: float | None
    failed_clients: int
    errors: list[str]
    warnings: list[str]


@dataclass(frozen=True)
class Page:
    """All of a page. ``differing`` has a row per key: its name and a value per group."""

    title: str
    made: str
    versions: dict[str, str]
    outcomes: list[Outcome]
    rows: list[compared.Row]
    accuracy: list[Chart]
    privacy: list[Chart]
    cost: list[Chart]
    names: list[str]
    differing: list[tuple[str, list[str]]]
    common: list[tuple[str, str]]
    extras: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refresh: int = 0


def read(paths: Sequence[str]) -> Page:
    """The page of runs in folders that are runs or hold some, in whatever state they are.

    Raises
    ------
    UserError
        If a path is no folder or holds no run.
    """
    return describe(curves.every(paths))


def describe(runs: Sequence[Run]) -> Page:
    """The page of these runs."""
    every = curves.grouped(runs)
    drawn = _drawn(runs)
    return Page(
        title=curves.title(every) or "federated runs",
        made=datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        versions={"fedsyn-flwr": __version__}
        | joined_versions(read_json(r.folder / "config.json").get("versions", {}) for r in runs),
        outcomes=[outcome(run) for run in runs],
        rows=compared.compared(drawn),
        accuracy=charts.accuracy(drawn) if drawn else [],
        privacy=charts.privacy(drawn) if drawn else [],
        cost=charts.cost(drawn) if drawn else [],
        names=curves.labels(drawn),
        differing=_differing(every),
        common=_common(every),
    )


def _drawn(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups of evaluated runs: of each its completed ones, where it has any."""
    groups = curves.grouped([run for run in runs if measures.accuracies(run.rows)])
    return [[run for run in group if run.completed] or group for group in groups]


def outcome(run: Run) -> Outcome:
    """What became of a run."""
    status, log = read_status(run.folder), run.folder / "flwr.log"
    reason = str(status.get("reason") or "")
    return Outcome(
        name=run.folder.name,
        method=str(run.config.get("strategy", "")),
        seed=str(run.config.get("seed", "")),
        status=str(status.get("status") or "unknown"),
        rounds=len(run.rows),
        wanted=int(run.config.get("num-server-rounds") or 0),
        reason=reason,
        final=measures.final(run.rows),
        failed_clients=int(measures.total(run.rows, "clients/failed")),
        errors=[] if run.completed else [e for e in read_errors(log) if e not in reason],
        warnings=_warnings(run),
    )


def _warnings(run: Run) -> list[str]:
    """Distinct warnings of a run's log, the first ones."""
    log = run.folder / "flwr.log"
    if not log.is_file():
        return []
    text = ANSI.sub("", log.read_text(encoding="utf-8", errors="replace"))
    found = (match[1].strip() for line in text.splitlines() if (match := WARNING.match(line)))
    return list(dict.fromkeys(found))[:MOST_WARNINGS]


def _differing(groups: Sequence[Sequence[Run]]) -> list[tuple[str, list[str]]]:
    """Keys in which groups differ, those that a method brings included."""
    keys = [key for key, values in _values(groups).items() if len(set(values)) > 1]
    return [(key, [_value(group[0].config.get(key)) for group in groups]) for key in keys]


def _common(groups: Sequence[Sequence[Run]]) -> list[tuple[str, str]]:
    alike = [(key, values[0]) for key, values in _values(groups).items() if len(set(values)) == 1]
    return [(key, value) for key, value in alike if key != "seed"]


def _values(groups: Sequence[Sequence[Run]]) -> dict[str, list[str]]:
    """Every key's value in each group's first run."""
    keys = dict.fromkeys(key for group in groups for key in group[0].config if key not in UNSHOWN)
    del keys["seed"]
    return {key: [_value(group[0].config.get(key)) for group in groups] for key in keys}


def _value(value: Any) -> str:
    return "—" if value is None else scalar(value) or '""'
