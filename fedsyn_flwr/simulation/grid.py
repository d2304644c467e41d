"""A grid of runs: confs × methods × values of keys × seeds, one after another, and its table.

A grid has no state of its own: what is left to do is read from the runs' folders, so the same
command goes on after whatever ended it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self

from fedsyn_flwr import registry
from fedsyn_flwr.config import Scalar, as_name
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report import measures
from fedsyn_flwr.report.aggregate import ABSENT, Record, Setting
from fedsyn_flwr.report.console import Listener
from fedsyn_flwr.report.estimate import Line
from fedsyn_flwr.report.files import read_rows, read_status
from fedsyn_flwr.report.gridview import LineListener, Watcher
from fedsyn_flwr.report.table import scalar
from fedsyn_flwr.simulation import superlink
from fedsyn_flwr.simulation.grid_arguments import of_method, own_overrides
from fedsyn_flwr.simulation.resolve import (
    Plan,
    check_parts,
    differing_keys,
    draft,
    find_conf,
    parse_override,
)
from fedsyn_flwr.simulation.runner import Link, execute

Standing = Literal["new", "unfinished", "finished"]

OWN_KEYS = {
    "strategy": "--methods",
    "seed": "--seeds",
    "run-name": "nothing, names are made of conf, method, values and seed",
    "resume": "nothing, unfinished runs go on by themselves",
    "results-dir": "--results-dir",
}


@dataclass(frozen=True)
class Cell:
    """One run of a grid, and what its folder holds already."""

    plan: Plan
    conf: str
    setting: Setting
    standing: Standing

    def record(self) -> Record:
        """What its folder tells by now."""
        federation, folder = self.plan.config.federation, self.plan.folder
        status = read_status(folder)
        return Record(
            name=str(self.plan.run_config["run-name"]),
            conf=self.conf,
            method=federation.strategy,
            setting=self.setting,
            seed=federation.seed,
            folder=folder,
            status=status.get("status", "waiting"),
            reason=status.get("reason", ""),
            rows=read_rows(folder),
        )

    def line(self) -> Line:
        """What is shown of it before it runs."""
        record, total = self.record(), self.plan.config.federation.num_server_rounds
        line = Line(record.name, record.group, total, accuracy=measures.final(record.rows))
        if self.standing == "finished":
            line.state, line.done = "finished", total
            line.pace = [row["seconds/round"] for row in record.rows if "seconds/round" in row]
        return line


@dataclass(frozen=True)
class Wanted:
    """A grid as the user asks for it.

    Attributes
    ----------
    confs : sequence of str
        Paths, or names in conf/.
    methods : sequence of str
        Names; empty takes each conf's own.
    seeds : sequence of int
        Of the runs.
    sets : mapping
        Key → the values it is to have.
    overrides : sequence of str
        ``key=value`` for all runs, ``method:key=value`` for those of one method.
    results_dir : str, optional
        Gets one folder per run.
    size : mapping
        For ``Options.fit``.
    """

    confs: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    sets: Mapping[str, Sequence[Scalar]]
    overrides: Sequence[str]
    results_dir: str | None
    size: Mapping[str, Any]

    def points(self) -> Iterator[tuple[str, str | None, Setting, int]]:
        """(conf, method, setting, seed) of each run.

        All with the first seed come first, so that an early look at the table compares like with
        like. A method that lacks a key of --set is run once, not once per value.
        """
        values = product(*self.sets.values())
        settings = [tuple(zip(self.sets, each, strict=True)) for each in values]
        methods: Sequence[str | None] = self.methods or [None]
        for seed in self.seeds:
            for conf, method in product(self.confs, methods):
                name = self.method(conf, method)
                for setting in dict.fromkeys(self.own(setting, name) for setting in settings):
                    yield conf, method, setting, seed

    def method(self, conf: str, method: str | None) -> str:
        """The method of a conf's runs."""
        if method is not None:
            return method
        general = own_overrides(self.overrides, "")
        return draft(conf, general, {}, **self.size).config.federation.strategy

    def own(self, setting: Setting, method: str) -> Setting:
        """A setting, without values where the method has no such key."""
        foreign = registry.foreign_keys(method)
        return tuple((key, ABSENT if key in foreign else value) for key, value in setting)

    def lacking(self) -> list[str]:
        """A line per method that lacks a key of --set."""
        methods: Sequence[str | None] = self.methods or [None]
        pairs = product(self.confs, methods)
        run = dict.fromkeys(self.method(conf, method) for conf, method in pairs)
        lacks = {m: [k for k in self.sets if k in registry.foreign_keys(m)] for m in run}
        return [
            f"note: {m} has no {', '.join(keys)}: run once" for m, keys in lacks.items() if keys
        ]

    def cell(self, conf: str, method: str | None, setting: Setting, seed: int) -> Cell:
        """One run, everything but data and model checked."""
        given = tuple((key, value) for key, value in setting if value != ABSENT)
        flags: dict[str, Scalar | None] = {**dict(given), "strategy": method, "seed": seed}
        flags["results-dir"] = self.results_dir
        stem = find_conf(conf).stem
        general = own_overrides(self.overrides, "")
        method = draft(conf, general, flags, **self.size).config.federation.strategy
        overrides = [*general, *own_overrides(self.overrides, method)]
        flags["run-name"] = run_name(stem, method, given, seed)
        plan = draft(conf, overrides, flags, **self.size)
        standing = standing_of(plan)
        if standing == "unfinished":
            plan = draft(conf, overrides, {**flags, "resume": True}, **self.size)
        return Cell(plan, stem, setting, standing)


def prepare(wanted: Wanted) -> list[Cell]:
    """Check every run of a grid; nothing is written.

    Raises
    ------
    UserError
        For the first mistake found.
    """
    _check_keys(wanted)
    cells = [wanted.cell(*point) for point in wanted.points()]
    run = {cell.plan.config.federation.strategy for cell in cells}
    for text in wanted.overrides:
        if (method := of_method(text)[0]) and method not in run:
            raise UserError(
                f"-c {text}: no run has strategy {method}, only {', '.join(sorted(run))}"
            )
    folders = [cell.plan.folder for cell in cells]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"two runs would be called {folder.name}: give the confs other names")
    if len({folder.parent for folder in folders}) > 1:
        raise UserError("the confs name different results-dirs: give one by --results-dir")
    checked: set[Any] = set()
    for cell in cells:
        if cell.standing != "finished":
            check_parts(cell.plan, checked)
    return cells


def _check_keys(wanted: Wanted) -> None:
    fixed = [parse_override(of_method(text)[1])[0] for text in wanted.overrides]
    for key in [*wanted.sets, *fixed]:
        if key in OWN_KEYS:
            raise UserError(f"{key} cannot be set for a grid: use {OWN_KEYS[key]}")
        if key in wanted.sets and key in fixed:
            raise UserError(f"{key} is given by --set and by -c: leave one out")


def standing_of(plan: Plan) -> Standing:
    """What the plan's folder holds.

    Raises
    ------
    UserError
        If that is a run of another configuration.
    """
    if not (plan.folder / "status.json").exists():
        return "new"
    if different := differing_keys(plan):
        raise UserError(
            f"{plan.folder} holds a run with other settings: {different}; "
            "choose another --results-dir or remove it"
        )
    done = read_status(plan.folder).get("status") == "completed"
    return "finished" if done else "unfinished"


def run_name(conf: str, method: str, setting: Setting, seed: int) -> str:
    """``digits-hfmds-learning-rate=0.1-s0``; letters that a name cannot have become ``_``."""
    parts = [conf, method, *(f"{key}={scalar(value)}" for key, value in setting), f"s{seed}"]
    return as_name("-".join(parts))


class SharedLink:
    """One SuperLink, with its Ray, for all runs of a grid.

    Opened for the first run that needs it; a new one after a run that ended badly, which may
    have taken Ray with it.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._link: Link | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    def get(self, cpus: int) -> Link:
        """The open one; ``cpus`` are the run's."""
        if self._link is None:
            self._link = self._open.enter_context(superlink.LocalSuperLink(cpus, wait=False))
        return self._link

    def ahead(self) -> None:
        """Let it prepare for another run."""
        if self._link is not None:
            self._link.ahead()

    def drop(self) -> None:
        """Close it."""
        self._link = None
        self._open.close()


def run(
    cells: Sequence[Cell], lines: Sequence[Line], watcher: Watcher, report: Callable[[], None]
) -> None:
    """Run what is not finished; a failed run is noted in its line and does not stop the others.

    Parameters
    ----------
    cells, lines : sequence
        The grid's runs, and what is shown of each.
    watcher : Watcher
        Is told of every change.
    report : callable
        Called after each completed run, to bring the table up to date.
    """
    todo = [pair for pair in zip(cells, lines, strict=True) if pair[0].standing != "finished"]
    with SharedLink() as shared:
        for cell, line in todo:
            more = line is not todo[-1][1]
            listener = LineListener(line, watcher, shared.ahead if more else None)
            line.state, line.reason = attempt(cell, shared, listener)
            watcher.changed(line)
            if line.state == "completed":
                report()
            else:
                shared.drop()


def attempt(cell: Cell, shared: SharedLink, listener: Listener) -> tuple[str, str]:
    """Run one cell; its status and, unless completed, why."""
    try:
        link = shared.get(cell.plan.options.cpus)
        result = execute(cell.plan.run_config, cell.plan.options, link, listener)
    except UserError as error:
        return "failed", str(error)
    return ("completed", "") if result.completed else ("failed", result.reason)


def records(cells: Sequence[Cell], lines: Sequence[Line]) -> list[Record]:
    """What the folders tell by now, and of this grid's failures what happened.

    A run that could not be resumed keeps an earlier attempt's reason in its status.json.
    """
    told = []
    for cell, line in zip(cells, lines, strict=True):
        record = cell.record()
        failed = line.state == "failed"
        told.append(replace(record, status="failed", reason=line.reason) if failed else record)
    return told
