"""The table of the page: a row per group of seeds, and whether it differs from the best."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsyn_flwr.report import costs, measures
from fedsyn_flwr.report.aggregate import Stat, stat
from fedsyn_flwr.report.curves import Run, labels

LEAST_SEEDS = 3
"""Pairs of seeds that a test needs."""


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but the seed.

    Attributes
    ----------
    runs, done : int
        How many there are, and how many of them were completed. All figures are over the completed
        ones; over all where there are none (``partial``).
    against : tuple of float or None
        p-values of the paired t and the Wilcoxon test of the final accuracy against the best row.
    pairs : int
        The seeds they have in common.
    """

    label: str
    runs: int
    done: int
    partial: bool
    final: Stat | None
    recent: Stat | None
    best: Stat | None
    bytes: Stat | None
    seconds: Stat | None
    flops: Stat | None
    winner: bool = False
    against: tuple[float | None, float | None] | None = None
    pairs: int = 0


def compared(groups: Sequence[Sequence[Run]]) -> list[Row]:
    """A row per group in their order, with the best mean final accuracy marked and tested."""
    rows = [_row(label, group) for label, group in zip(labels(groups), groups, strict=True)]
    whole = [i for i, row in enumerate(rows) if row.final and not row.partial]
    if len(whole) < 2:
        return rows
    top = max(whole, key=lambda i: rows[i].final.mean)  # type: ignore[union-attr]
    tested = [
        _tested(row, group, groups[top]) if i in whole and i != top else row
        for i, (row, group) in enumerate(zip(rows, groups, strict=True))
    ]
    tested[top] = replace(tested[top], winner=True)
    return tested


def _row(label: str, group: Sequence[Run]) -> Row:
    done = [run for run in group if run.completed]
    used = [run.rows for run in done or group]
    return Row(
        label=label,
        runs=len(group),
        done=len(done),
        partial=not done,
        final=stat(map(measures.final, used)),
        recent=stat(map(measures.recent, used)),
        best=stat(map(measures.best, used)),
        bytes=stat(sum(measures.traffic(rows)) or None for rows in used),
        seconds=stat(measures.seconds(rows) or None for rows in used),
        flops=stat(_flops(rows) for rows in used),
    )


def _flops(rows: measures.Rows) -> float | None:
    """Of one client in all rounds; None where they were not counted."""
    per_round = costs.costs(rows).get("flops") if rows else None
    return None if per_round is None else per_round * len(rows)


def _tested(row: Row, group: Sequence[Run], best: Sequence[Run]) -> Row:
    mine, theirs = _by_seed(group), _by_seed(best)
    seeds = sorted(set(mine) & set(theirs), key=str)
    if len(seeds) < LEAST_SEEDS:
        return replace(row, pairs=len(seeds))
    p = p_values([mine[s] for s in seeds], [theirs[s] for s in seeds])
    return replace(row, against=p, pairs=len(seeds))


def _by_seed(group: Sequence[Run]) -> dict[Any, float]:
    finals = {run.config.get("seed"): measures.final(run.rows) for run in group if run.completed}
    return {seed: final for seed, final in finals.items() if final is not None}


def p_values(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None]:
    """Two-sided paired t and Wilcoxon signed-rank; None where a test has nothing to say.

    That is the t test of differences that are all alike, and either of none at all.
    """
    from scipy.stats import ttest_rel, wilcoxon

    differences = [x - y for x, y in zip(a, b, strict=True)]
    if not any(differences):
        return None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few or equal values: the page says what n was
        t = float(ttest_rel(a, b).pvalue) if len(set(differences)) > 1 else math.nan
        w = float(wilcoxon(a, b).pvalue)
    return (None if math.isnan(t) else t), (None if math.isnan(w) else w)
