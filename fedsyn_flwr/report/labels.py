"""Who holds which labels, as a table for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.table import Table

MAX_COLUMNS = 20


def label_table(table: NDArray[np.int64], class_names: Sequence[str]) -> "Table":
    """One row per client: total and count per class, or the largest classes if there are many.

    Parameters
    ----------
    table : int (K, C)
        Rows of each class at each client.
    class_names : sequence of str
        C names.
    """
    from rich import box
    from rich.table import Table

    few = len(class_names) <= MAX_COLUMNS
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("client", "total", "classes"):
        shown.add_column(name, justify="right")
    for name in class_names if few else ["largest classes"]:
        shown.add_column(name, justify="right" if few else "left")
    for client, counts in enumerate(table):
        held = (
            [str(count) if count else "." for count in counts]
            if few
            else [_top(counts, class_names)]
        )
        shown.add_row(str(client), str(counts.sum()), str(np.count_nonzero(counts)), *held)
    return shown


def _top(counts: NDArray[np.int64], class_names: Sequence[str], most: int = 5) -> str:
    order = [i for i in np.argsort(-counts, kind="stable")[:most] if counts[i]]
    return ", ".join(f"{class_names[i]} {counts[i]}" for i in order)
