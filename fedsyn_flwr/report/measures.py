"""What one run achieved and cost: pure functions of its rounds, the lines of metrics.jsonl."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

Rows = Sequence[Mapping[str, Any]]

ACCURACY = "server/test_accuracy"
STAND_INS = {ACCURACY: "clients/test_accuracy", "server/test_loss": "clients/test_loss"}
"""Where the server has no test set: the same over all of the clients' samples."""
RECENT = 5
"""How many of the last evaluations are averaged where single ones swing from round to round."""
MEASURED = (
    "clients/test_",
    "personalised/test_",
    "synthesis/",
    "privacy/",
    "gan/",
    "averaged/",
    "ensemble/",
    "refined/",
    "dp/",
)
"""Prefixes of what only some methods measure."""


def value(row: Mapping[str, Any], key: str) -> Any:
    """A round's figure, or the clients' where the server has no test set; None without either."""
    found = row.get(key)
    return row.get(STAND_INS.get(key, key)) if found is None else found


def accuracies(rows: Rows) -> list[tuple[int, float]]:
    """(round, accuracy of the global model) of the rounds with an evaluation."""
    pairs = [(row["round"], value(row, ACCURACY)) for row in rows]
    return [pair for pair in pairs if pair[1] is not None]


def best(rows: Rows) -> float | None:
    """The highest test accuracy, None without any."""
    return max((accuracy for _, accuracy in accuracies(rows)), default=None)


def final(rows: Rows) -> float | None:
    """The last test accuracy, None without any."""
    return accuracies(rows)[-1][1] if accuracies(rows) else None


def recent(rows: Rows, key: str = ACCURACY) -> float | None:
    """Mean of a key's last five values (all where there are fewer), None without any."""
    values = [value(row, key) for row in rows]
    return mean([found for found in values if found is not None][-RECENT:])


def rounds_to(rows: Rows, target: float) -> int | None:
    """The first round with at least the target accuracy, None if there is none."""
    return next((number for number, accuracy in accuracies(rows) if accuracy >= target), None)


def total(rows: Rows, *keys: str) -> float:
    """Sum of keys over all rounds; what a round did not measure counts as 0."""
    return sum(row.get(key) or 0 for row in rows for key in keys)


def traffic(rows: Rows) -> tuple[int, int]:
    """Bytes sent down to and up from the clients in all rounds."""
    return int(total(rows, "bytes/down")), int(total(rows, "bytes/up"))


def seconds(rows: Rows) -> float:
    """Seconds spent in rounds; starting and stopping the simulation not counted."""
    return float(total(rows, "seconds/round"))


def running_totals(rows: Rows, *keys: str) -> list[float]:
    """The sum of keys up to each round and with it."""
    return list(accumulate(total([row], *keys) for row in rows))


def measured(rows: Rows) -> dict[str, float]:
    """The last value of all that only some methods measure; of accuracies the `recent` mean."""
    values = {}
    for row in rows:
        values.update({k: v for k, v in row.items() if k.startswith(MEASURED) and _is_number(v)})
    means = {key: recent(rows, key) for key in values if "_accuracy" in key}
    return values | {key: value for key, value in means.items() if value is not None}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean, None of nothing."""
    held = list(values)
    return sum(held) / len(held) if held else None
