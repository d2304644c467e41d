"""What an answer may hold: exactly what was said, nothing else."""

import numpy as np
import pytest

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.schema import Array, check, like

W = np.zeros(3, np.float32)
SCHEMA = {
    "model": {"trainable": Array("float32", (3,), norm=5e3), "counters": Array("int64", (0,))},
    "labels": {"counts": Array("int64", (None,), low=0)},
    "synthetic": None,
}
SOUND = {
    "model": {"trainable": W, "counters": np.zeros(0, np.int64)},
    "labels": {"counts": np.array([0, 4])},
    "synthetic": {"images": np.zeros((1, 2))},
}


def changed(group: str, **arrays: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    return {**SOUND, group: {**SOUND[group], **arrays}}


def test_what_was_said_passes() -> None:
    check(SOUND, SCHEMA)
    check(SOUND, {**like({k: SOUND[k] for k in ("model", "labels")}), "synthetic": None})


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ({k: SOUND[k] for k in ("model", "synthetic")}, "its answer holds no labels"),
        ({**SOUND, "more": {}}, "its answer holds more, which nobody asked for"),
        (changed("model", other=W), r"its model holds \['counters', 'other', 'trainable'\]"),
        ({**SOUND, "labels": {}}, r"its labels holds \[\], expected \['counts'\]"),
        (changed("model", trainable=W[:2]), r"trainable is float32 \(2,\), expected float32 \(3\)"),
        (changed("model", trainable=W[None]), r"is float32 \(1, 3\)"),
        (changed("model", trainable=np.array(0, np.float32)), r"is float32 \(\)"),
        (changed("model", trainable=W.astype("S4")), "trainable is |S4"),
        (changed("model", trainable=W.astype(complex)), "trainable is complex128"),
        (changed("model", trainable=W.astype(np.float64)), "trainable is float64"),
        (changed("model", trainable=W.astype("<U1")), "trainable is <U1"),
        (changed("model", trainable=np.zeros(3, "M8[s]")), "trainable is datetime64"),
        (changed("model", trainable=np.zeros(3, [("a", "f4")])), "trainable is "),
        (changed("model", counters=np.zeros(0)), "counters is float64"),
        (changed("labels", counts=np.array([3, -1])), "counts has values down to -1, expected 0"),
        (changed("model", trainable=np.full(3, 3.4e38, np.float32)), "norm inf, expected 5e\\+03"),
        (changed("model", trainable=np.full(3, 5e3, np.float32)), r"norm 8.66e\+03, expected 5e"),
        (changed("model", trainable=np.full(3, np.nan, np.float32)), "has NaN or infinite"),
        (changed("model", trainable=np.full(3, np.inf, np.float32)), "has NaN or infinite"),
    ],
)
def test_anything_else_is_refused_by_name(groups: dict, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        check(groups, SCHEMA)
