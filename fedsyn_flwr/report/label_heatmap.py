"""A picture of who holds what: label counts per client."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def save_heatmap(
    table: NDArray[np.int64], class_names: Sequence[str], path: Path, title: str
) -> None:
    """Draw label counts as a PNG: clients across, classes down, logarithmic colour, 0 left white.

    Parameters
    ----------
    table : int (K, C)
        Rows of each class at each client, see :func:`fedsyn_flwr.data.partition.label_table`.
    class_names : sequence of str
        C names.
    path : Path
        Where the PNG goes; replaced whole, parents made.
    title : str
        Shown above.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    clients, classes = table.shape
    size = (min(5 + 0.28 * clients, 18), min(2.2 + 0.32 * classes, 16))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = np.ma.masked_equal(table.T, 0)
    image = axes.imshow(
        shown, aspect="auto", cmap="viridis_r", norm=LogNorm(1, max(2, int(table.max(initial=0))))
    )
    figure.colorbar(image, label="samples (log scale; white = none)")
    axes.set(title=title, xlabel=f"client (of {clients})", ylabel="class")
    _ticks(axes, clients, class_names)
    if clients * classes <= 250:
        _counts(axes, table)
    _save(figure, path)


def _ticks(axes: Any, clients: int, class_names: Sequence[str]) -> None:
    axes.set_xticks(range(0, clients, 1 if clients <= 25 else _step(clients)))
    small = 9 if len(class_names) <= 40 else 6
    axes.set_yticks(range(len(class_names)), class_names, fontsize=small)


def _step(clients: int) -> int:
    """Return a round distance that gives at most 20 ticks."""
    return next(s for e in range(9) for s in (10**e, 2 * 10**e, 5 * 10**e) if clients <= 20 * s)


def _counts(axes: Any, table: NDArray[np.int64]) -> None:
    """Write the numbers into the cells, white on the dark ones."""
    dark = np.sqrt(max(int(table.max()), 1))
    for (client, label), count in np.ndenumerate(table):
        if count:
            colour = "white" if count > dark else "black"
            axes.text(client, label, count, ha="center", va="center", color=colour, fontsize=7)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png", dpi=120)
    os.replace(partial, path)
