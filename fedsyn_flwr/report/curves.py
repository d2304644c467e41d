"""From results folders to curves with a band over seeds, as pure functions but for the reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr import config as configs
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.registry import METHODS, param_classes
from fedsyn_flwr.report import measures
from fedsyn_flwr.report.files import read_config, read_rows, read_status
from fedsyn_flwr.report.measures import ACCURACY, Rows
from fedsyn_flwr.report.table import scalar

X = Literal["rounds", "seconds", "bytes", "flops"]
Floats = NDArray[np.float64]

GRID_POINTS = 400
IRRELEVANT = {"seed", *configs.FREE_KEYS}
"""Keys in which runs of one group may differ."""
BROUGHT = ("server-optimizer", "server-lr", "refinement", "mrtf-modules", "hfmds-mu")
"""Keys that a method may decide: its name says them then."""


@dataclass(frozen=True)
class Run:
    """A run's configuration and rounds."""

    folder: Path
    config: Mapping[str, Any]
    rows: Rows
    completed: bool = True

    @property
    def identity(self) -> tuple[tuple[str, Any], ...]:
        """All that runs of different seeds have in common; keys of other methods left out."""
        without = {*IRRELEVANT, *_foreign(str(self.config.get("strategy")))}
        return tuple(sorted((k, v) for k, v in self.config.items() if k not in without))


@dataclass(frozen=True)
class Curve:
    """Accuracy, or another measure, of one group of runs.

    Attributes
    ----------
    label : str
        What sets the group apart from the others.
    x, mean, low, high : float (N,)
        Mean, smallest and largest value over the runs at each x.
    runs : int
        How many there are.
    """

    label: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    runs: int


@dataclass(frozen=True)
class Found:
    """What there is to draw: groups of runs, in order, and the folders that were left out."""

    groups: list[list[Run]]
    left_out: list[Path] = field(default_factory=list)


@cache
def _foreign(strategy: str) -> frozenset[str]:
    """Keys that only other methods read."""
    own = METHODS[strategy].params if strategy in METHODS else None
    declared = {cls: {configs.kebab(f.name) for f in fields(cls)} for cls in param_classes()}
    return frozenset().union(*declared.values()) - declared.get(own, frozenset())


def find(paths: Sequence[str]) -> Found:
    """Runs in folders that are runs or hold some, grouped; those without a round are left out.

    They come in the order of the paths, and in a folder in that of `fedsyn methods`.

    Unfinished runs are left out too, unless there are no others.

    Raises
    ------
    UserError
        If a path is no folder, or nothing can be drawn.
    """
    each = [sorted(map(_read, _run_folders(path)), key=_method_order) for path in paths]
    runs = list({run.folder: run for found in each for run in found}.values())
    drawn = [run for run in runs if measures.accuracies(run.rows)]
    drawn = [run for run in drawn if run.completed] or drawn
    if not drawn:
        raise UserError(f"no evaluated round in {', '.join(paths)}: nothing to draw")
    kept = {run.folder for run in drawn}
    return Found(grouped(drawn), [run.folder for run in runs if run.folder not in kept])


def every(paths: Sequence[str]) -> list[Run]:
    """All runs in folders that are runs or hold some, whatever became of them."""
    runs = [_read(folder) for path in paths for folder in _run_folders(path)]
    return sorted({run.folder: run for run in runs}.values(), key=_method_order)


def _run_folders(path: str) -> list[Path]:
    """The folder itself, or the runs one level below it."""
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{path} is not a folder: give a run's folder, or one that holds runs")
    if (folder / "config.json").is_file():
        return [folder]
    below = sorted(child.parent for child in folder.glob("*/config.json"))
    if not below:
        raise UserError(f"{path} holds no run: none of its folders has a config.json")
    return below


def _method_order(run: Run) -> int:
    names, method = list(METHODS), run.config.get("strategy")
    return names.index(method) if method in names else len(names)


def _read(folder: Path) -> Run:
    # a key that the run's version did not have had its default
    config = {**configs.defaults(), **read_config(folder)}
    completed = read_status(folder).get("status") == "completed"
    return Run(folder, config, read_rows(folder), completed)


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs whose configurations differ in nothing but the seed, in order of appearance.

    A seed that was run twice counts once, or deviations would come out too small: its longest run.
    """
    groups: dict[tuple[tuple[str, Any], ...], dict[Any, Run]] = {}
    for run in runs:
        seeds = groups.setdefault(run.identity, {})
        seed = run.config.get("seed")
        if seed not in seeds or len(run.rows) > len(seeds[seed].rows):
            seeds[seed] = run
    return [list(seeds.values()) for seeds in groups.values()]


def labels(groups: Sequence[Sequence[Run]], without: str = "") -> list[str]:
    """What sets each group apart: the method's name, then ``key=value`` of keys that differ.

    The key ``without`` is left out, where a picture shows it otherwise.
    """
    keys = [key for key in differing(groups) if key != without]
    return [_label(dict(group[0].identity), keys) for group in groups]


def differing(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Keys in which the groups differ, in order of their names."""
    configs_ = [dict(group[0].identity) for group in groups]
    keys = sorted({key for config in configs_ for key in config})
    found = [key for key in keys if _differ(configs_, key)]
    return [key for key in found if key not in BROUGHT or not _follows(configs_, key)]


def _label(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    named = [str(config["strategy"])] if "strategy" in keys else []
    rest = [f"{key}={scalar(config[key])}" for key in keys if key in config and key != "strategy"]
    return ", ".join([*named, *rest]) or str(config.get("strategy", ""))


def _differ(configs_: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether those that have the key at all have different values."""
    return len({config[key] for config in configs_ if key in config}) > 1


def _follows(configs_: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether runs of one method all have one value, so that the method tells it."""
    pairs = {(config.get("strategy"), config[key]) for config in configs_ if key in config}
    return len(pairs) == len({strategy for strategy, _ in pairs})


def points(rows: Rows, x: X, measure: str = ACCURACY) -> tuple[Floats, Floats]:
    """x and accuracy of a run's evaluated rounds, or another measure of those that have it.

    Seconds, bytes and FLOPs are sums up to the round's end; rounds without an evaluation count
    too. FLOPs are those of one client that takes part in every round.
    """
    keys = _keys(rows, x)
    along = (
        measures.running_totals(rows, *keys) if x != "rounds" else [row["round"] for row in rows]
    )
    pairs = [
        (a, measures.value(row, measure))
        for a, row in zip(along, rows, strict=True)
        if measures.value(row, measure) is not None
    ]
    found = np.array(pairs, dtype=float).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _keys(rows: Rows, x: X) -> list[str]:
    """What is summed along an axis; nothing for rounds. The privacy report is no method's work."""
    if x == "flops":
        names = {name for row in rows for name in row if name.startswith("flops/")}
        return sorted(names - {"flops/privacy"})
    return {"seconds": ["seconds/round"], "bytes": ["bytes/down", "bytes/up"], "rounds": []}[x]


def curve(label: str, runs: Sequence[Rows], x: X, measure: str = ACCURACY) -> Curve:
    """Mean and range over runs.

    Rounds are compared where all runs were evaluated. Seconds and bytes differ from run to run:
    they are interpolated on a common grid over the range that all runs cover.
    """
    all_points = [points(rows, x, measure) for rows in runs]
    if x == "rounds" or len(runs) == 1:
        grid = _common([along for along, _ in all_points])
    else:
        first = max(along[0] for along, _ in all_points)
        last = min(along[-1] for along, _ in all_points)
        grid = np.linspace(first, max(first, last), GRID_POINTS)
    values = np.stack([np.interp(grid, along, accuracy) for along, accuracy in all_points])
    return Curve(label, grid, values.mean(0), values.min(0), values.max(0), len(runs))


def _common(xs: Sequence[Floats]) -> Floats:
    common = set(xs[0].tolist())
    for each in xs[1:]:
        common &= set(each.tolist())
    return np.array(sorted(common), dtype=float)


def curves(groups: Sequence[Sequence[Run]], x: X, measure: str = ACCURACY) -> list[Curve]:
    """One per group."""
    pairs = zip(labels(groups), groups, strict=True)
    return [curve(label, [run.rows for run in group], x, measure) for label, group in pairs]


_PARTITION_KEYS = ("dirichlet-alpha", "classes-per-client", "shards-per-client", "partition-file")


def title(groups: Sequence[Sequence[Run]]) -> str:
    """What all groups have in common and a reader wants to know."""
    configs_ = [group[0].config for group in groups]
    first, clients = configs_[0], configs_[0].get("num-clients")
    parts = [
        (str(first.get("dataset")), ("dataset",)),
        (_partition(first), ("partition", *_PARTITION_KEYS)),
        (str(first.get("model")), ("model",)),
        (f"{clients} clients" if clients else "", ("num-clients",)),
    ]
    shared = (text for text, keys in parts if not any(_differ(configs_, key) for key in keys))
    return ", ".join(text for text in shared if text)


def _partition(config: Mapping[str, Any]) -> str:
    kind = config.get("partition")
    if kind == "dirichlet":
        return f"Dirichlet({scalar(config['dirichlet-alpha'])}) partition"
    if kind == "dirichlet-balanced":
        return f"balanced Dirichlet({scalar(config['dirichlet-alpha'])}) partition"
    if kind == "classes":
        return f"{config['classes-per-client']} classes per client"
    if kind == "pathological":
        return f"pathological partition, {config['classes-per-client']} classes per client"
    if kind == "shards":
        return f"{config['shards-per-client']} shards per client"
    return f"{kind} partition"


def by_value(groups: Sequence[Sequence[Run]]) -> list[Sequence[Run]]:
    """The groups in order of the values of the keys they differ in."""
    keys = differing(groups)
    return sorted(groups, key=lambda group: [rank(group[0].config.get(key)) for key in keys])


def rank(value: Any) -> tuple[bool, float, str]:
    """Sorts numbers by size, before words by spelling."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, float(value) if number else 0.0, "" if number else str(value))
