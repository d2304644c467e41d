"""Variance among client updates: by hand, in a federation, and without touching the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy
from harness import Federation

from fedsyn_flwr.messages.payload import from_parameters
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.server.averaging import PIECE
from fedsyn_flwr.server.drift import Drift, squared_distance

QUICK: dict[str, Any] = {
    "strategy": "fedavg",
    "num-server-rounds": 2,
    "limit-train": 200,
    "limit-test": 50,
    "model-width": 0.25,
}
KEYS = {"drift/update_variance", "drift/relative_variance"}


def federation(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, 4, **{**QUICK, **keys})


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# ---- by hand


def test_variance_by_hand() -> None:
    """w_t = (1, 1); updates (4, 0) with weight 1 and (0, 4) with weight 3; their mean is (1, 3).

    ¼·(9 + 9) + ¾·(1 + 1) = 6, and ‖(1, 3)‖² = 10.
    """
    drift = Drift(floats(1, 1))
    drift.add(floats(5, 1), 1)
    drift.add(floats(1, 5), 3)
    found = drift.metrics(floats(2, 4))
    assert found == {"drift/update_variance": 6, "drift/relative_variance": pytest.approx(0.6)}


def test_one_client_has_no_variance_and_no_move_no_ratio() -> None:
    w = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    drift = Drift(np.zeros(1000, np.float32))
    drift.add(w, 3)
    assert drift.metrics(w)["drift/update_variance"] == pytest.approx(0, abs=1e-9)
    still = Drift(floats(0))
    still.add(floats(1), 1)
    still.add(floats(-1), 1)
    assert still.metrics(floats(0)) == {"drift/update_variance": 1}


@pytest.mark.parametrize("size", [0, 1, PIECE, 2 * PIECE + 3])
def test_distance_of_long_vectors(size: int) -> None:
    a, b = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    expected = np.linalg.norm(a.astype(float) - b) ** 2
    assert squared_distance(a, b) == pytest.approx(expected, rel=1e-6)


# ---- in a federation


def replies(f: Federation, server_round: int = 1) -> list[tuple[ClientProxy, FitRes]]:
    """What all clients answer in a round, in partition order."""
    messages = f.strategy.configure_fit(server_round, f.strategy.parameters, f.manager)
    return [(client, client.fit(ins, None, None)) for client, ins in messages]


@pytest.mark.parametrize(
    ("strategy", "weighting"),
    [("fedavg", "examples"), ("fedavg", "uniform"), ("scaffold", "examples"), ("mrtf", "uniform")],
)
def test_it_is_the_variance_of_what_the_clients_sent(
    tmp_path: Path, strategy: str, weighting: str
) -> None:
    f = federation(tmp_path, strategy=strategy, weighting=weighting)
    for server_round in (1, 2):
        start = f.model["trainable"].astype(float)
        answers = replies(f, server_round)
        groups = [from_parameters(r.parameters, f.strategy.flat.layout) for _, r in answers]
        updates = np.stack([g["model"]["trainable"] for g in groups]).astype(float) - start
        counts = np.array([r.num_examples for _, r in answers])
        assert len(set(counts)) > 1
        p = counts / counts.sum() if weighting == "examples" else np.full(4, 0.25)
        mean = p @ updates
        variance = sum(p[k] * np.sum((updates[k] - mean) ** 2) for k in range(4))
        _, found = f.strategy.aggregate_fit(server_round, answers, [])
        assert found["drift/update_variance"] == pytest.approx(variance, rel=1e-5)
        assert found["drift/relative_variance"] == pytest.approx(variance / (mean @ mean), rel=1e-5)


def test_the_order_of_arrival_makes_no_difference(tmp_path: Path) -> None:
    found = []
    for name, order in (("a", [0, 1, 2, 3]), ("b", [2, 0, 3, 1])):
        f = federation(tmp_path / name)
        answers = replies(f)
        _, metrics = f.strategy.aggregate_fit(1, [answers[i] for i in order], [])
        found.append({key: metrics[key] for key in KEYS})
    assert found[0] == found[1]


def test_it_is_measured_where_the_model_is_evaluated(tmp_path: Path) -> None:
    rows = lines(federation(tmp_path, **{"evaluate-every": 2, "num-server-rounds": 3}).run())
    assert [bool(KEYS & row.keys()) for row in rows] == [False, True, True]
    assert [row.keys() > KEYS for row in rows] == ["server/test_loss" in row for row in rows]


def test_every_round_is_measured_and_the_model_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = federation(tmp_path / "a").run()
    assert all(row.keys() >= KEYS for row in lines(f))
    monkeypatch.setattr(Drift, "add", lambda *_: None)
    monkeypatch.setattr(Drift, "metrics", lambda *_: {})
    without = federation(tmp_path / "b").run()
    assert digest(without.model) == digest(f.model)
    assert not KEYS & lines(without)[0].keys()


def test_skewed_clients_drift_further_apart(tmp_path: Path) -> None:
    variances = [
        lines(federation(tmp_path / p, partition=p).run())[0]["drift/update_variance"]
        for p in ("iid", "dirichlet")
    ]
    assert variances[1] > 5 * variances[0]
