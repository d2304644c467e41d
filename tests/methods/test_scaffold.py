"""SCAFFOLD: exact numbers, its limit, what the controls add up to, many clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation, LocalProxy
from tiny import fit, quadratic

from clients import scaffold
from clients.scaffold import ScaffoldClient
from fedsyn_flwr.messages.payload import from_parameters, to_parameters
from fedsyn_flwr.models.flat_model import digest

QUICK: dict[str, Any] = {
    "strategy": "scaffold",
    "momentum": 0.0,
    "num-server-rounds": 4,
    "fraction-fit": 0.5,
    "limit-train": 200,
    "model-width": 0.25,
}


def federation(folder: Path, clients: int = 4, proxy: type = LocalProxy, **keys: Any) -> Federation:
    return Federation(folder, clients, proxy, **{**QUICK, **keys})


def metrics(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def control(*values: float) -> dict[str, np.ndarray]:
    return {"c": np.array(values, np.float32)}


def kept_controls(f: Federation, after: int) -> list[np.ndarray]:
    """c_i of every client after a round; zero where it has none."""
    stores = [f.worker.state(f.strategy.codec.run).client(k) for k in range(len(f.proxies))]
    found = [store.load(store.newest(after)) for store in stores]
    zero = np.zeros_like(f.model["trainable"])
    return [zero if state is None else state["control"] for state in found]


# ---- the client by hand


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """g = w, η = 0.1, two steps a round, c = (0.5, 0) both times."""
    client = quadratic(ScaffoldClient, tmp_path)
    first = fit(client, [1.0, 2.0], 1, control=control(0.5, 0.0))
    # (1, 2) - 0.1·(1.5, 2) = (0.85, 1.8); - 0.1·(1.35, 1.8)
    np.testing.assert_allclose(first["model"]["trainable"], [0.715, 1.62], rtol=1e-6)
    # c_i starts at 0, and becomes the mean gradient: ((1, 2) + (0.85, 1.8)) / 2
    np.testing.assert_allclose(first["control"]["delta"], [0.925, 1.9], rtol=1e-5)
    second = fit(client, [1.0, 2.0], 2, control=control(0.5, 0.0))
    # c - c_i = (-0.425, -1.9): (1, 2) → (0.9425, 1.99) → (0.89075, 1.981)
    np.testing.assert_allclose(second["model"]["trainable"], [0.89075, 1.981], rtol=1e-6)
    np.testing.assert_allclose(second["control"]["delta"], [0.04625, 0.095], rtol=1e-4)


def test_momentum_stretches_the_step_by_hand(tmp_path: Path) -> None:
    """m = 0.5: steps (1, 2) and (1.4, 2.8); divided by 2·0.1/(1 - 0.5)."""
    answer = fit(
        quadratic(ScaffoldClient, tmp_path, momentum=0.5), [1.0, 2.0], control=control(0, 0)
    )
    np.testing.assert_allclose(answer["model"]["trainable"], [0.76, 1.52], rtol=1e-6)
    np.testing.assert_allclose(answer["control"]["delta"], [0.6, 1.2], rtol=1e-5)


def test_the_corrected_gradient_is_what_is_clipped(tmp_path: Path) -> None:
    """(3, 4) + (0, -4) = (3, 0), clipped to (1, 0)."""
    client = quadratic(ScaffoldClient, tmp_path, clip_norm=1.0, local_epochs=1)
    answer = fit(client, [3.0, 4.0], control=control(0.0, -4.0))
    np.testing.assert_allclose(answer["model"]["trainable"], [2.9, 4.0], rtol=1e-6)


def test_nothing_trained_leaves_the_control_alone() -> None:
    own, c = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 5.0])
    assert scaffold.option_two(own, c, torch.zeros(2), 0.0) is own


# ---- the limit


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_zero_frozen_controls_are_fedavg_without_momentum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: str
) -> None:
    fedavg = digest(federation(tmp_path / "a", strategy="fedavg", norm=norm).run().model)
    assert digest(federation(tmp_path / "b", norm=norm).run().model) != fedavg
    monkeypatch.setattr(scaffold, "option_two", lambda own, *_: own)
    frozen = federation(tmp_path / "c", norm=norm).run()
    assert digest(frozen.model) == fedavg
    assert not frozen.strategy.control["c"].any()


# ---- the server


def test_c_is_the_mean_of_all_clients_controls(tmp_path: Path) -> None:
    """Every round adds |S|/K times the mean change; clients never sampled count as zero."""
    f = federation(tmp_path, clients=8, **{"fraction-fit": 0.25, "limit-train": 300}).run()
    own = kept_controls(f, after=4)
    assert 2 <= sum(bool(c.any()) for c in own) < 8
    expected = np.mean(own, axis=0)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(f.strategy.control["c"], expected, atol=1e-6)
    assert f.strategy.control["c"].dtype == np.float32


def test_only_trainable_parameters_have_controls(tmp_path: Path) -> None:
    f = federation(tmp_path, norm="bn", **{"num-server-rounds": 2}).run()
    assert f.model["buffers"].size > 0
    assert f.strategy.control["c"].shape == f.model["trainable"].shape


def test_server_step_by_hand(tmp_path: Path) -> None:
    """η_g = 0.5 goes half the way; c moves by the sum of changes over K = 4."""
    f = federation(tmp_path, **{"scaffold-server-lr": 0.5})
    s = f.strategy
    s.enrol(f.manager)
    s.begin_attempt()
    mean = {k: v.copy() for k, v in s.model.items()}
    mean["trainable"] += np.float32(0.25)
    s.change += 2.0
    old = s.model["trainable"].copy()
    new = s.server_step(mean)
    np.testing.assert_allclose(new["trainable"] - old, 0.125, atol=1e-6)
    assert set(s.control["c"].tolist()) == {0.5}
    assert new["buffers"] is mean["buffers"]


def test_controls_travel_and_are_counted(tmp_path: Path) -> None:
    keys = {"num-server-rounds": 2}
    plain = metrics(federation(tmp_path / "a", strategy="fedavg", **keys).run())
    f = federation(tmp_path / "b", **keys).run()
    size = 2 * f.model["trainable"].nbytes  # two clients a round
    for ours, theirs in zip(metrics(f), plain, strict=True):
        for way in ("bytes/down", "bytes/up"):
            assert ours[way] - theirs[way] == pytest.approx(size, abs=2 * 300)


class OneSendsBadControl(LocalProxy):
    def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        result = super().fit(ins, timeout, group_id)
        if self.partition == 1:
            layout = self.worker.flat.layout
            groups = from_parameters(result.parameters, layout)
            groups["control"]["delta"] = groups["control"]["delta"] * np.float32("nan")
            result.parameters = to_parameters(groups, layout)
        return result


def test_a_control_with_nan_is_rejected(tmp_path: Path) -> None:
    f = federation(tmp_path, proxy=OneSendsBadControl, **{"fraction-fit": 1.0}).run()
    assert [x["clients/rejected"] for x in metrics(f)] == [1] * 4
    assert np.isfinite(f.strategy.control["c"]).all()
    assert "its control: delta has NaN" in " ".join(f.strategy.record.reasons)


def test_a_failed_attempt_leaves_no_change_behind(tmp_path: Path) -> None:
    f = federation(tmp_path)
    f.strategy.begin_attempt()
    f.strategy.change += 1.0
    f.strategy.open_sums(4, measured=False)
    assert not f.strategy.change.any()


# ---- it trains


def test_it_trains_with_a_tenth_of_sixty_clients(tmp_path: Path) -> None:
    keys = {
        "fraction-fit": 0.1,
        "num-server-rounds": 40,
        "limit-train": 0,
        "model-width": 0.5,
        "learning-rate": 0.1,
        "evaluate-every": 5,
    }
    lines = metrics(federation(tmp_path, clients=60, **keys).run())
    accuracy = [x["server/test_accuracy"] for x in lines if "server/test_accuracy" in x]
    assert np.mean(accuracy[-2:]) > np.mean(accuracy[:2]) + 0.1, accuracy
    assert np.mean(accuracy[-2:]) > 0.5, accuracy
    assert all(np.isfinite(x["server/test_loss"]) for x in lines if "server/test_loss" in x)
