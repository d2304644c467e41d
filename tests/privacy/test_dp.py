"""Clipping and noise by hand, what is sent, and the privacy that is accounted for."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation

from fedsyn_flwr.config import PrivacyConfig
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.privacy.dp import Accountant, privatise
from fedsyn_flwr.server.update import Update

QUICK: dict[str, Any] = {
    "strategy": "fedavg",
    "num-server-rounds": 2,
    "limit-train": 200,
    "model-width": 0.25,
    "weighting": "uniform",
    "synthesis-every": 1,
    "synthesis-per-client": 2,
    "synthesis-steps": 1,
}


def privacy(clip: float, sigma: float) -> PrivacyConfig:
    return PrivacyConfig(dp_clip=clip, dp_sigma=sigma, dp_delta=1e-2)


def vectors(trainable: list[float], buffers: list[float]) -> dict[str, np.ndarray]:
    return {
        "trainable": np.array(trainable, np.float32),
        "buffers": np.array(buffers, np.float32),
        "counters": np.array([7]),
    }


class Ones:
    """Noise that is 1 everywhere."""

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.ones(shape)


RECEIVED = vectors([1.0, 1.0], [1.0, 1.0])
TRAINED = vectors([4.0, 1.0], [5.0, 1.0])  # Δ = (3, 0 | 4, 0), norm 5


def noisy(clip: float, sigma: float, variances: Any = ()) -> dict[str, np.ndarray]:
    return privatise(TRAINED, RECEIVED, privacy(clip, sigma), Ones(), list(variances))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clip", "sigma", "trainable", "buffers"),
    [
        (0, 0, [4, 1], [5, 1]),
        (9, 0, [4, 1], [5, 1]),
        (2.5, 0, [2.5, 1], [3, 1]),
        (0, 0.5, [4.5, 1.5], [5.5, 1.5]),
        (2.5, 0.5, [3, 1.5], [3.5, 1.5]),
    ],
)
def test_by_hand(clip: float, sigma: float, trainable: list[float], buffers: list[float]) -> None:
    sent = noisy(clip, sigma)
    assert sent["trainable"].tolist() == trainable
    assert sent["buffers"].tolist() == buffers
    assert sent["counters"].tolist() == [7]
    assert sent["trainable"].dtype == np.float32
    assert TRAINED["trainable"].tolist() == [4, 1]


def test_off_is_the_very_model() -> None:
    assert noisy(0, 0) is TRAINED


def test_nothing_learnt_is_no_division_by_zero() -> None:
    sent = privatise(RECEIVED, RECEIVED, privacy(1, 0), Ones(), [])  # type: ignore[arg-type]
    assert sent["trainable"].tolist() == [1, 1]


def test_variances_stay_variances() -> None:
    class Down(Ones):
        def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
            return -np.ones(shape)

    sent = privatise(TRAINED, RECEIVED, privacy(0, 9), Down(), [slice(1, 2)])  # type: ignore[arg-type]
    assert sent["buffers"].tolist() == [-4, 0]


def test_noise_has_its_standard_deviation() -> None:
    zero = vectors([0.0] * 20_000, [])
    sent = privatise(zero, zero, privacy(0, 0.1), np.random.default_rng(0), [])
    assert sent["trainable"].std() == pytest.approx(0.1, rel=0.02)
    assert abs(sent["trainable"].mean()) < 0.003


# ---- in a federation


def federation(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, 4, **{**QUICK, **keys})


def final(folder: Path, **keys: Any) -> str:
    return digest(federation(folder, **keys).run().model)


def test_it_is_seeded_and_composes(tmp_path: Path) -> None:
    plain = final(tmp_path / "a")
    first = final(tmp_path / "b", **{"dp-sigma": 0.01})
    assert final(tmp_path / "c", **{"dp-sigma": 0.01}) == first != plain
    assert final(tmp_path / "d", **{"dp-clip": 0.1}) not in (plain, first)
    mrtf = {"strategy": "mrtf", "mrtf-steps": 2}
    assert final(tmp_path / "e", **mrtf) != final(tmp_path / "f", **mrtf, **{"dp-sigma": 0.01})


def test_what_leaves_the_client_is_clipped(tmp_path: Path) -> None:
    f = federation(tmp_path, norm="bn", **{"dp-clip": 0.1, "num-server-rounds": 1})
    start = f.strategy.model
    norms: list[float] = []
    original = f.strategy.fold

    def spying(update: Update) -> None:
        delta = [
            update.groups["model"][k].astype(float) - start[k] for k in ("trainable", "buffers")
        ]
        norms.append(float(np.linalg.norm(np.concatenate(delta))))
        original(update)

    f.strategy.fold = spying
    f.run()
    assert norms == pytest.approx([0.1] * 4, rel=1e-4)


def test_every_client_has_noise_of_its_own(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"dp-sigma": 0.5, "num-server-rounds": 1})
    start, sent = f.model["trainable"].copy(), list[np.ndarray]()
    f.strategy.fold = lambda update: sent.append(update.groups["model"]["trainable"])
    f.run()
    correlation = np.corrcoef(np.stack(sent) - start)
    assert np.abs(correlation - np.eye(4)).max() < 0.3


# ---- the accountant


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"dp-sigma": 0.1}, "no guarantee: updates are not clipped"),
        ({"dp-clip": 1.0}, "no guarantee: no noise is added"),
        (
            {"dp-clip": 1.0, "dp-sigma": 0.1, "weighting": "examples"},
            "no guarantee: a client's weight is not bounded",
        ),
    ],
)
def test_no_guarantee_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: dict[str, Any], why: str
) -> None:
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        f = federation(tmp_path, **keys).run()
    finally:
        logger.removeHandler(caplog.handler)
    assert why in caplog.text
    assert "dp/epsilon" not in (f.folder / "metrics.jsonl").read_text()


def test_nothing_is_said_without_privacy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        federation(tmp_path).run()
    finally:
        logger.removeHandler(caplog.handler)
    assert "guarantee" not in caplog.text


def test_methods_that_send_more_have_no_guarantee() -> None:
    accountant = Accountant(privacy(1, 1), uniform=True)
    assert accountant.objection == ""
    accountant.exposed = True
    assert "sends more than models" in accountant.objection


@pytest.mark.parametrize("strategy", ["scaffold", "hfmds"])
def test_what_else_is_sent_is_noticed(tmp_path: Path, strategy: str) -> None:
    f = federation(tmp_path, strategy=strategy, **{"dp-clip": 1.0, "dp-sigma": 0.1}).run()
    assert f.strategy.accountant.exposed
    assert "sends more than models" in f.strategy.accountant.said
    assert "dp/epsilon" not in (f.folder / "metrics.jsonl").read_text()


def test_epsilon_of_full_participation_by_hand() -> None:
    """n = S = K, so no amplification: RDP α/(2z²) per round, turned into ε at the best order.

    With z = σ√n/2C = 0.5·2/2 = 0.5 and one round, the classic bound α/(2z²) + log(1/δ)/(α-1) is
    least at α = 1 + z·√(2·log(1/δ)); the accountant's conversion may only be tighter.
    """
    pytest.importorskip("dp_accounting")
    accountant = Accountant(PrivacyConfig(dp_clip=1.0, dp_sigma=0.5, dp_delta=1e-2), uniform=True)
    accountant.release(4, 4)
    spent = accountant.metrics(4)
    z, log_delta = 0.5, math.log(100)
    alpha = 1 + z * math.sqrt(2 * log_delta)
    classic = alpha / (2 * z**2) + log_delta / (alpha - 1)
    assert 0.7 * classic < spent["dp/epsilon"] <= classic
    assert spent["dp/delta"] == 1e-2


def test_epsilon_grows_with_rounds_and_survives_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    keys = {"dp-clip": 1.0, "dp-sigma": 1.0, "fraction-fit": 0.5, "num-server-rounds": 3}
    f = federation(tmp_path, **keys).run()
    rows = [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]
    epsilons = [row["dp/epsilon"] for row in rows]
    assert 0 < epsilons[0] < epsilons[1] < epsilons[2]
    again = Accountant(f.worker.settings.privacy, uniform=True)
    _, scalars = f.strategy.accountant.state()
    again.restore({}, json.loads(json.dumps(scalars)))
    assert again.metrics(4)["dp/epsilon"] == epsilons[2]
