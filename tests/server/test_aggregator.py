"""The round's sums, by hand."""

import numpy as np
import pytest

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
