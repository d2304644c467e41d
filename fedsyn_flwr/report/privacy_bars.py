"""Accuracy, what the shared images give away, and time: a bar per method (the paper's Fig. 2)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report import measures
from fedsyn_flwr.report.aggregate import Stat, stat
from fedsyn_flwr.report.canvas import COLOURS, canvas, save
from fedsyn_flwr.report.curves import Run, labels, title
from fedsyn_flwr.report.sweep import caption

PSNR = "privacy/psnr_mean"
Measure = Callable[[Run], float | None]


def _accuracy(run: Run) -> float | None:
    final = measures.final(run.rows)
    return None if final is None else 100 * final


def _psnr(run: Run) -> float | None:
    return measures.measured(run.rows).get(PSNR)


def _pace(run: Run) -> float | None:
    return measures.seconds(run.rows) / len(run.rows)


PANELS: tuple[tuple[str, str, str, Measure], ...] = (
    ("accuracy, higher is better", "final test accuracy (%)", "{:.1f}", _accuracy),
    ("likeness, lower gives away less", "PSNR to the real image (dB)", "{:.1f}", _psnr),
    ("time, lower is better", "seconds per round", "{:.2f}", _pace),
)


def draw_privacy(groups: Sequence[Sequence[Run]], stem: Path) -> list[Path]:
    """Write the picture; returns the files' paths.

    PSNR is that of the last synthesis, the mean over its images.

    Raises
    ------
    UserError
        If no run measured it.
    """
    stats = [[stat(f(run) for run in group) for group in groups] for *_, f in PANELS]
    if not any(stats[1]):
        raise UserError(f"no run measured {PSNR}: give runs of a method that shares images")
    names = labels(groups)
    figure = canvas(8.4 + 0.07 * max(map(len, names)), 2.0 + 0.36 * len(groups))
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, found, (heading, unit, form, _) in zip(panels, stats, PANELS, strict=True):
        _bars(axes, found, form)
        axes.set_title(heading, fontsize="medium")
        axes.set_xlabel(unit)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    counts = {each.n for found in stats for each in found if each}
    figure.suptitle(f"{title(groups)}; {caption(counts)}", fontsize="medium")
    return save(figure, stem)


def _bars(axes: Any, stats: Sequence[Stat | None], form: str) -> None:
    """A bar per group with its value."""
    top = max((each.mean + (each.std or 0) for each in stats if each), default=1.0)
    for i, each in enumerate(stats):
        if each is None:
            axes.text(0.02 * top, i, "not measured", va="center", fontsize="small", color="#555555")
            continue
        std = each.std or 0
        axes.barh(i, each.mean, xerr=std or None, color=COLOURS[-1], capsize=3, height=0.7)
        text = form.format(each.mean)
        axes.text(each.mean + std + 0.02 * top, i, text, va="center", fontsize="small")
    axes.set_xlim(0, 1.18 * top)
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
