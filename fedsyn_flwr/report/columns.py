"""Tables of text, for whoever has the cells: Markdown, CSV, rich tables as wide as a terminal."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Cells = tuple[list[str], list[list[str]]]
"""Headers, and rows of as many texts."""


def markdown_lines(cells: Cells, left: int) -> list[str]:
    """A Markdown table; the first ``left`` columns are names, the others figures."""
    headers, rows = cells
    rule = [":--" if i < left else "--:" for i in range(len(headers))]
    return ["| " + " | ".join(line) + " |" for line in (headers, rule, *rows)]


def csv_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """A header and the lines; ``folder`` is the last column, the others as they first appear."""
    columns = dict.fromkeys(key for line in lines for key in line if key != "folder")
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns, "folder"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def terminal_parts(cells: Cells, names: range, width: int) -> "list[Table]":
    """As many tables below each other as the terminal's width needs.

    Parameters
    ----------
    cells : Cells
        What is shown.
    names : range
        The columns that name the row, repeated in each part; columns before them are not shown.
    width : int
        Characters in a line.
    """
    headers, rows = cells
    widths = [max(map(len, column)) + 3 for column in zip(headers, *rows, strict=True)]
    parts: list[list[int]] = [[]]
    room = width - sum(widths[i] for i in names)
    for i in range(names.stop, len(headers)):
        if parts[-1] and sum(widths[j] for j in (*parts[-1], i)) > room:
            parts.append([])
        parts[-1].append(i)
    return [_drawn(cells, [*names, *part], names.stop) for part in parts]


def _drawn(cells: Cells, kept: Sequence[int], left: int) -> "Table":
    from rich import box
    from rich.table import Table

    headers, rows = cells
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i in kept:
        shown.add_column(headers[i], justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*(row[i] for i in kept))
    return shown
