"""The table of who holds what."""

import io

import numpy as np
from rich.console import Console

from fedsyn_flwr.report.labels import label_table


def lines(table, names):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(label_table(np.array(table), names))
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_few_classes_have_a_column_each():
    rows = lines([[3, 0], [0, 0]], ["cat", "dog"])
    assert rows[0] == ["client", "total", "classes", "cat", "dog"]
    assert rows[2:] == [["0", "3", "1", "3", "."], ["1", "0", "0", ".", "."]]


def test_many_classes_are_summed_up_by_the_largest():
    counts = np.zeros((1, 30), dtype=int)
    counts[0, [4, 7, 9]] = 2, 50, 6
    rows = lines(counts, [f"c{i}" for i in range(30)])
    assert rows[2] == ["0", "58", "3", "c7", "50,", "c9", "6,", "c4", "2"]
