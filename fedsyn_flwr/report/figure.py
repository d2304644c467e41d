"""Draw curves: PNG and SVG, readable in print and by the colour-blind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsyn_flwr.report.canvas import COLOURS, canvas, save
from fedsyn_flwr.report.curves import Curve, X

STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
SECONDS = ((3 * 3600, 3600, "h"), (600, 60, "min"), (0, 1, "s"))  # from, divisor, unit
BYTES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (0, 1e3, "kB"))
MOST_INSIDE, LONGEST_INSIDE = 6, 30  # more curves or letters have their legend beside the axes


@dataclass(frozen=True)
class Scale:
    """The vertical axis: its name, whether it is logarithmic, and what line and band are.

    ``band`` is empty where they are mean and range over seeds.
    """

    name: str
    logarithmic: bool = False
    band: str = ""


ACCURACY = Scale("test accuracy of the global model")


def draw(
    curves: Sequence[Curve], x: X, title: str, stem: Path, scale: Scale = ACCURACY
) -> list[Path]:
    """Write ``<stem>.png`` and ``<stem>.svg``; returns their paths.

    Parameters
    ----------
    curves : sequence of Curve
        1 to about 15 of them stay legible.
    x : str
        What they are drawn against.
    title : str
        Shown above.
    stem : Path
        Where the files go, without a suffix.
    scale : Scale
        What is drawn; a logarithmic one is linear after all where a value is not above 0.
    """
    from matplotlib.ticker import MaxNLocator

    longest = max(len(curve.label) for curve in curves)
    beside = len(curves) > MOST_INSIDE or longest > LONGEST_INSIDE
    size = (7.2 + 0.08 * max(longest, 26), 5.6) if beside else (6.4, 4.8)
    figure = canvas(*size)
    axes = figure.add_subplot()
    divisor, name = axis(x, max(float(curve.x[-1]) for curve in curves))
    for i, curve in enumerate(curves):
        look = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)]}
        _line(axes, curve, divisor, look, band=0.08 if beside else 0.15)
    axes.set(xlabel=name, ylabel=scale.name)
    if scale.logarithmic and min(float(curve.low.min()) for curve in curves) > 0:
        axes.set_yscale("log")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    if x == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)
    _legend(axes, curves, beside, scale.band)
    return save(figure, stem)


def _line(axes: Any, curve: Curve, divisor: float, look: Mapping[str, Any], band: float) -> None:
    along = curve.x / divisor
    marker = "o" if len(along) == 1 else None  # a line of one point would not be seen
    axes.plot(along, curve.mean, marker=marker, linewidth=1.8, **look)
    if (curve.high > curve.low).any():
        colour = look["color"]
        axes.fill_between(along, curve.low, curve.high, color=colour, alpha=band, linewidth=0)


def _legend(axes: Any, curves: Sequence[Curve], beside: bool, band: str) -> None:
    """Beside the curves, its order is theirs from top to bottom."""
    counts = {curve.runs for curve in curves}
    names = [c.label if len(counts) == 1 else f"{c.label} ({seeds(c.runs)})" for c in curves]
    order = list(range(len(curves)))
    look: dict[str, Any] = {"fontsize": "small", "title_fontsize": "small", "loc": "best"}
    if beside:
        order.sort(key=lambda i: -curves[i].mean[-1])
        look |= {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    lines = axes.get_lines()
    entries = [lines[i] for i in order], [names[i] for i in order]
    axes.legend(*entries, title=band or caption(counts), alignment="left", handlelength=3.5, **look)


def caption(counts: set[int]) -> str:
    """What line and band are, for runs per group."""
    if counts == {1}:
        return "one seed"
    over = seeds(next(iter(counts))) if len(counts) == 1 else "the seeds"
    return f"mean and range (min to max)\nover {over}"


def seeds(count: int) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{count} seed{'' if count == 1 else 's'}"


def axis(x: X, largest: float) -> tuple[float, str]:
    """What to divide x by, and the axis' name with the unit that makes it readable."""
    if x == "rounds":
        return 1, "communication round"
    sizes: tuple[tuple[float, float, str], ...] = SECONDS if x == "seconds" else BYTES
    divisor, unit = next((size, unit) for least, size, unit in sizes if largest >= least)
    what = "time spent in rounds" if x == "seconds" else "communication, down and up, all clients"
    return divisor, f"{what} ({unit})"
