"""The round's sums, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn_flwr.models.flat_model import Vectors
from fedsyn_flwr.server.aggregator import Aggregator


def model(*values: float, count: int = 0) -> Vectors:
    return {
        "trainable": np.array(values, np.float32),
        "buffers": np.array([values[0] * 10], np.float32),
        "counters": np.array([count]),
    }


@pytest.mark.parametrize(
    ("weighting", "mean"), [("examples", [(30 + 50) / 40, 1.0]), ("uniform", [3.0, 1.0])]
)
def test_the_mean_and_what_is_beside_it(weighting: str, mean: list[float]) -> None:
    sums = Aggregator(weighting)  # type: ignore[arg-type]
    sums.open(expected=2, origin=model(1.0, 1.0))
    sums.add(model(1.0, 1.0, count=3), examples=30, loss=0.5)
    sums.add(model(5.0, 1.0, count=7), examples=10, loss=2.5)
    found = sums.mean()
    np.testing.assert_allclose(found["trainable"], mean)
    np.testing.assert_allclose(found["buffers"], [mean[0] * 10])
    assert found["counters"].tolist() == [7]
    assert [found[k].dtype.name for k in found] == ["float32", "float32", "int64"]
    metrics = sums.metrics(found)
    assert metrics["clients/train_loss"] == pytest.approx((30 * 0.5 + 10 * 2.5) / 40)
    p = 0.25 if weighting == "examples" else 0.5
    assert metrics["drift/update_variance"] == pytest.approx(p * 16 - (p * 4) ** 2)


def test_without_an_origin_no_drift_is_measured() -> None:
    sums = Aggregator("examples")
    sums.open(expected=1)
    sums.add(model(2.0), examples=1, loss=1.0)
    assert sums.metrics(sums.mean()) == {"clients/train_loss": 1.0}


def test_opening_forgets_another_attempt() -> None:
    sums = Aggregator("examples")
    sums.add(model(2.0), examples=1, loss=1.0)
    assert not sums.empty
    sums.open()
    assert sums.empty


def test_who_has_no_samples_has_no_weight() -> None:
    assert [Aggregator("examples").weight(n) for n in (0, 3)] == [0.0, 3.0]
    assert [Aggregator("uniform").weight(n) for n in (0, 3)] == [0.0, 1.0]


def shares(weights: list[float], c: float) -> np.ndarray:
    """The capped shares by bisection of T = c·Σ min(p_k, T), an independent way."""
    p = np.array(weights, float)
    if c * len(p) <= 1:
        return np.full(len(p), 1 / len(p))
    low, high = 0.0, float(p.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle <= c * np.minimum(p, middle).sum() else (low, middle)
    capped = np.minimum(p, low) if low < p.max() else p
    return capped / capped.sum()


@given(
    weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=12),
    c=st.sampled_from([0.1, 0.2, 0.25, 0.4, 0.5, 0.9]),
)
def test_no_client_weighs_more_than_its_share(weights: list[int], c: float) -> None:
    sums = Aggregator("examples", max_share=c)
    sums.open(expected=len(weights), origin=model(*[0.0] * len(weights)))
    for k, n in enumerate(weights):
        sums.add(model(*np.eye(len(weights))[k]), examples=n, loss=1.0)
    found = sums.mean()["trainable"]  # of unit vectors: the shares themselves
    np.testing.assert_allclose(found, shares([float(n) for n in weights], c), atol=1e-6)
    assert found.max() <= max(c, 1 / len(weights)) + 1e-6


def test_without_a_limit_no_model_is_kept() -> None:
    sums = Aggregator("examples")
    sums.add(model(2.0), examples=2**40, loss=1.0)
    assert sums.heaviest == []
