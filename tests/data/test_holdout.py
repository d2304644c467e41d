"""What a client holds out, by hand and for any labels."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsyn_flwr.data.holdout import hold_out, quotas


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_quotas_by_hand() -> None:
    assert quotas(np.array([10, 5]), 0.2, generator()).tolist() == [2, 1]
    assert quotas(np.array([8, 3]), 0.25, generator()).tolist() == [2, 1]  # 2.75 is 3
    assert quotas(np.array([1, 1, 1]), 0.9, generator()).tolist() == [0, 0, 0]
    assert quotas(np.array([], np.int64), 0.5, generator()).tolist() == []


@given(st.lists(st.integers(0, 4), max_size=60), st.floats(0, 0.99), st.integers(0, 9))
def test_parts_are_disjoint_complete_and_stratified(
    labels: list[int], fraction: float, seed: int
) -> None:
    y = np.array(labels, np.int64)
    indices = np.arange(len(y)) * 3 + 1
    train, test = hold_out(indices, y, fraction, generator(seed))
    assert sorted([*train, *test]) == indices.tolist()
    assert set(y[(train - 1) // 3]) == set(labels)  # every class is still trained on
    counts, held = (np.bincount(part, minlength=5) for part in (y, y[(test - 1) // 3]))
    assert (np.abs(held - counts * fraction) <= 1).all()
    again = hold_out(indices, y, fraction, generator(seed))
    assert [a.tolist() for a in again] == [train.tolist(), test.tolist()]
