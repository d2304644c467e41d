"""Final accuracy against the values of a key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report import measures
from fedsyn_flwr.report.aggregate import Stat, stat
from fedsyn_flwr.report.canvas import COLOURS, MARKERS, canvas, save
from fedsyn_flwr.report.curves import Run, differing, labels, rank, title
from fedsyn_flwr.report.table import scalar

LOGARITHMIC = 50  # a larger ratio of the largest to the smallest value gets a logarithmic axis


@dataclass(frozen=True)
class Sweep:
    """One line of the picture: value of the key → final accuracy; {None: …} without the key."""

    label: str
    points: Mapping[Any, Stat]


def swept_key(groups: Sequence[Sequence[Run]], wanted: str | None) -> str:
    """The key that is swept: the one asked for, or the only one beside the method that differs.

    Raises
    ------
    UserError
        If that is not one.
    """
    keys = [key for key in differing(groups) if key != "strategy"]
    have = f"the runs differ in {', '.join(keys) or 'nothing'}"
    if wanted is None and len(keys) != 1:
        raise UserError(f"--key is needed: {have}")
    if wanted is not None and wanted not in keys:
        raise UserError(f"--key {wanted!r} has one value in all runs: {have}")
    return wanted or keys[0]


def sweeps(groups: Sequence[Sequence[Run]], key: str) -> list[Sweep]:
    """Groups that differ in nothing but the key and the seed are one line, values in order."""
    names = labels(groups, without=key)
    found: dict[str, dict[Any, Stat]] = {}
    for name, group in zip(names, groups, strict=True):
        value = dict(group[0].identity).get(key)
        accuracy = stat(measures.final(run.rows) for run in group)
        if accuracy is not None:
            found.setdefault(name, {})[value] = accuracy
    return [Sweep(name, {v: p[v] for v in sorted(p, key=rank)}) for name, p in found.items()]


def draw_sweep(groups: Sequence[Sequence[Run]], key: str, stem: Path) -> list[Path]:
    """Write the picture; returns the files' paths.

    Methods without the key, or with one value of it, are horizontal lines.
    """
    found = sweeps(groups, key)
    values = sorted({v for each in found for v in each.points} - {None}, key=rank)
    numeric = not any(rank(value)[0] for value in values)
    figure = canvas(6.4, 4.8)
    axes = figure.add_subplot()
    for i, sweep in enumerate(found):
        _line(axes, sweep, None if numeric else values, i)
    if not numeric:
        axes.set_xticks(range(len(values)), [scalar(value) for value in values])
    elif min(values) > 0 and max(values) / min(values) > LOGARITHMIC:
        axes.set_xscale("log")
        axes.set_xticks(values, [scalar(value) for value in values])
        axes.minorticks_off()
    else:
        axes.set_xticks(values, [scalar(value) for value in values])
    axes.set(xlabel=key, ylabel="final test accuracy of the global model (%)")
    axes.set_title(title(groups), fontsize="medium")
    axes.grid(alpha=0.3)
    counts = {s.n for sweep in found for s in sweep.points.values()}
    look = {"fontsize": "small", "title_fontsize": "small", "alignment": "left"}
    figure.legend(title=caption(counts), loc="outside lower center", **look)
    return save(figure, stem)


def alone(sweep: Sweep) -> bool:
    """Whether there is nothing to connect: a yardstick for the others."""
    return len(sweep.points) == 1


def caption(counts: set[int]) -> str:
    """What point and bar are, for runs per point."""
    if counts == {1}:
        return "one seed"
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
    return f"mean ± standard deviation over {seeds} seeds"


def _line(axes: Any, sweep: Sweep, words: Sequence[Any] | None, i: int) -> None:
    colour, marker = COLOURS[i % len(COLOURS)], ("o", *MARKERS)[i % (len(MARKERS) + 1)]
    if alone(sweep):
        (flat,) = sweep.points.values()
        mean, std = 100 * flat.mean, 100 * (flat.std or 0)
        axes.axhline(mean, color=colour, linestyle="--", label=sweep.label)
        axes.axhspan(mean - std, mean + std, color=colour, alpha=0.12, linewidth=0)
        return
    xs = [value if words is None else words.index(value) for value in sweep.points]
    means = [100 * point.mean for point in sweep.points.values()]
    stds = [100 * (point.std or 0) for point in sweep.points.values()]
    axes.errorbar(xs, means, stds, color=colour, marker=marker, capsize=3, label=sweep.label)
