"""Server optimisers: by hand, against an independent loop, in every strategy."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation

from fedsyn_flwr.config import load
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models.flat_model import KINDS, digest
from fedsyn_flwr.server.server_optimizer import DEFAULT_LR, Optimizer
from fedsyn_flwr.simulation.resolve import Plan, differing_keys
from fedsyn_flwr.simulation.resources import Options

QUICK: dict[str, Any] = {
    "strategy": "fedavg",
    "num-server-rounds": 3,
    "fraction-fit": 0.6,
    "limit-train": 200,
    "model-width": 0.25,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 2,
}
METHODS = {"fedavgm": "avgm", "fedadagrad": "adagrad", "fedadam": "adam", "fedyogi": "yogi"}


def federation(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, 4, **{**QUICK, **keys})


def final(folder: Path, **keys: Any) -> str:
    return digest(federation(folder, **keys).run().model)


# ---- two weights, two steps, worked by hand; β₁ = 0.5, β₂ = 0.75, η = 0.1, τ = 0.5, so v₀ = 0.25

BY_HAND = {
    # m = Δ = (1, -2), then 0.5·m + Δ = (1.5, -1)
    "avgm": ([0.1, -0.2], [0.25, -0.3]),
    # m = (0.5, -1), v = (1.25, 4.25); then m = (0.75, -0.5), v = (2.25, 4.25)
    "adagrad": (
        [0.05 / (math.sqrt(1.25) + 0.5), -0.1 / (math.sqrt(4.25) + 0.5)],
        [
            0.05 / (math.sqrt(1.25) + 0.5) + 0.075 / 2.0,
            -0.1 / (math.sqrt(4.25) + 0.5) - 0.05 / (math.sqrt(4.25) + 0.5),
        ],
    ),
    # v = 0.1875 + 0.25·(1, 4) = (0.4375, 1.1875); then 0.75·v + 0.25·(1, 0) = (0.578125, 0.890625)
    "adam": (
        [0.05 / (math.sqrt(0.4375) + 0.5), -0.1 / (math.sqrt(1.1875) + 0.5)],
        [
            0.05 / (math.sqrt(0.4375) + 0.5) + 0.075 / (math.sqrt(0.578125) + 0.5),
            -0.1 / (math.sqrt(1.1875) + 0.5) - 0.05 / (math.sqrt(0.890625) + 0.5),
        ],
    ),
    # v = 0.25 + 0.25·(1, 4) = (0.5, 1.25), Δ² > v; then (0.5 + 0.25, 1.25 - 0)
    "yogi": (
        [0.05 / (math.sqrt(0.5) + 0.5), -0.1 / (math.sqrt(1.25) + 0.5)],
        [
            0.05 / (math.sqrt(0.5) + 0.5) + 0.075 / (math.sqrt(0.75) + 0.5),
            -0.1 / (math.sqrt(1.25) + 0.5) - 0.05 / (math.sqrt(1.25) + 0.5),
        ],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_two_steps_by_hand(name: str) -> None:
    o = Optimizer(name, lr=0.1, beta1=0.5, beta2=0.75, tau=0.5)
    w, moments = np.zeros(2, np.float32), {}
    for delta, expected in zip(([1.0, -2.0], [1.0, 0.0]), BY_HAND[name], strict=True):
        w, moments = o.step(w, w + np.array(delta, np.float32), moments)
        assert w.dtype == np.float32
        np.testing.assert_allclose(w, expected, rtol=1e-6)


def test_yogi_lowers_v_where_the_update_is_small() -> None:
    """v = 0.25 > Δ² = 0.04: v - 0.25·0.04 = 0.24, where Adam has 0.1975."""
    o = Optimizer("yogi", lr=1.0, beta1=0.0, beta2=0.75, tau=0.5)
    _, moments = o.step(np.zeros(1, np.float32), np.full(1, 0.2, np.float32), {})
    np.testing.assert_allclose(moments["v"], 0.24, rtol=1e-6)


# ---- five rounds of a federation against a loop written here


def loop(name: str, w: np.ndarray, means: list[np.ndarray]) -> list[np.ndarray]:
    """Reference: weight by weight where the rule branches, defaults of the conf."""
    eta = {"avgm": 1.0, "adagrad": 0.1, "adam": 0.01, "yogi": 0.01}[name]
    w, m, v = w.astype(float), np.zeros(w.size), np.full(w.size, 1e-6)
    models = []
    for mean in means:
        d = mean - w
        if name == "avgm":
            m = 0.9 * m + d
            w = w + eta * m
        else:
            m = 0.9 * m + 0.1 * d
            if name == "adagrad":
                v = v + d * d
            elif name == "adam":
                v = 0.99 * v + 0.01 * d * d
            else:
                v = np.where(v > d * d, v - 0.01 * d * d, v + 0.01 * d * d)
            w = w + eta * m / (np.sqrt(v) + 1e-3)
        models.append(w)
    return models


@pytest.mark.parametrize("strategy", METHODS)
def test_five_rounds_equal_an_independent_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    f = federation(tmp_path, strategy=strategy, norm="bn", **{"num-server-rounds": 5})
    means, models = [], [{k: v.copy() for k, v in f.model.items()}]
    original = f.strategy.server_step

    def spying(mean: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        means.append(mean)
        models.append(original(mean))
        return models[-1]

    monkeypatch.setattr(f.strategy, "server_step", spying)
    f.run()
    first = models.pop(0)["trainable"]
    expected = loop(METHODS[strategy], first, [m["trainable"] for m in means])
    assert len(models) == 5
    for model, mean, reference in zip(models, means, expected, strict=True):
        np.testing.assert_allclose(model["trainable"], reference, atol=1e-6, rtol=0)
        assert np.array_equal(model["buffers"], mean["buffers"])
        assert np.array_equal(model["counters"], mean["counters"])
        assert [model[k].dtype.name for k in KINDS] == ["float32", "float32", "int64"]
    assert np.abs(models[-1]["trainable"] - first).max() > 1e-3
    assert digest(f.model) == digest(models[-1])


# ---- section 4


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_fedavgm_without_momentum_is_fedavg(tmp_path: Path, norm: str) -> None:
    fedavg = final(tmp_path / "a", norm=norm)
    limit = {"server-beta1": 0.0, "server-lr": 1.0}
    assert final(tmp_path / "b", norm=norm, strategy="fedavgm", **limit) == fedavg
    assert final(tmp_path / "c", norm=norm, strategy="fedavgm") != fedavg


def test_the_limit_is_exact_whatever_the_sizes() -> None:
    """Also where mean and model differ by a factor of a million."""
    g = np.random.default_rng(0)
    w, mean = (
        (g.normal(size=100_000) * 10.0 ** g.uniform(-3, 3, 100_000)).astype(np.float32)
        for _ in range(2)
    )
    new, _ = Optimizer("avgm", lr=1.0, beta1=0.0, beta2=0.0, tau=1.0).step(w, mean, {})
    assert np.array_equal(new, mean)


# ---- as a key of every strategy


@pytest.mark.parametrize("strategy", METHODS)
def test_the_method_is_fedavg_with_the_key(tmp_path: Path, strategy: str) -> None:
    named = final(tmp_path / "a", strategy=strategy)
    assert final(tmp_path / "b", **{"server-optimizer": METHODS[strategy]}) == named


@pytest.mark.parametrize("strategy", ["fedprox", "moon", "fedmmd", "scaffold", "fedgen", "hfmds"])
def test_it_composes_with_any_client(tmp_path: Path, strategy: str) -> None:
    plain = final(tmp_path / "a", strategy=strategy)
    adam = final(tmp_path / "b", strategy=strategy, **{"server-optimizer": "adam"})
    assert adam != plain
    limit = {"server-optimizer": "avgm", "server-beta1": 0.0}
    assert final(tmp_path / "c", strategy=strategy, **limit) == plain


def test_it_starts_from_the_refined_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    f = federation(tmp_path, strategy="fedavgm", **{"server-beta1": 0.0, "server-lr": 0.5})

    def halve(model: dict[str, np.ndarray], _: int) -> dict[str, np.ndarray]:
        return {**model, "trainable": model["trainable"] / 2}

    monkeypatch.setattr(f.strategy, "refine", halve)
    w, one = f.model["trainable"].copy(), np.float32(1)
    for _ in range(2):
        f.strategy.aggregator.add({**f.model, "trainable": f.model["trainable"] + one}, 1, 0.0)
        f.strategy.finalise(1)
        f.strategy.open_sums(0, measured=False)
        w = (w + 0.5) / 2
    np.testing.assert_allclose(f.model["trainable"], w, atol=1e-6)


def test_a_method_and_a_key_that_disagree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="server-optimizer = 'yogi': this strategy brings 'adam'"):
        federation(tmp_path, strategy="fedadam", **{"server-optimizer": "yogi"})
    assert not (tmp_path / "run").exists()


def test_learning_rate_zero_is_the_optimisers_own(tmp_path: Path) -> None:
    for strategy, name in METHODS.items():
        assert (
            federation(tmp_path / name, strategy=strategy).strategy.optimizer.rule.lr
            == DEFAULT_LR[name]
        )
    f = federation(tmp_path / "given", strategy="fedadam", **{"server-lr": 0.3})
    assert f.strategy.optimizer.rule.lr == 0.3


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ({}, ("none", 0.0)),
        ({"strategy": "fedadam"}, ("adam", 0.01)),
        ({"strategy": "fedavgm", "server-lr": 0.5}, ("avgm", 0.5)),
        ({"server-optimizer": "yogi"}, ("yogi", 0.01)),
    ],
)
def test_config_json_says_what_the_run_has(tmp_path: Path, keys: Any, written: Any) -> None:
    f = federation(tmp_path, **keys)
    config = json.loads((f.folder / "config.json").read_text())["config"]
    assert (config["server-optimizer"], config["server-lr"]) == written
    # the same command finds its own run there, and one from before this was written
    plan = Plan(f.run_config, load(f.run_config), Options.fit(4, cpus_per_client=1))
    assert differing_keys(plan) == ""
    config |= {"server-optimizer": "none", "server-lr": 0.0, **keys}
    (f.folder / "config.json").write_text(json.dumps({"config": config}))
    assert differing_keys(plan) == ""
    (f.folder / "config.json").write_text(json.dumps({"config": {**config, "server-lr": 7.0}}))
    assert differing_keys(plan).startswith("server-lr = 7.0 there")


@pytest.mark.parametrize(
    ("strategy", "written"),
    [
        ("fedavg", ("none", "st+rd+clr")),
        ("feddf", ("feddf", "avglogi")),
        ("mrtf", ("mrtf", "st+rd+clr")),
    ],
)
def test_config_json_says_the_refinement(tmp_path: Path, strategy: str, written: Any) -> None:
    f = federation(tmp_path, strategy=strategy, **{"num-server-rounds": 1}).run()
    config = json.loads((f.folder / "config.json").read_text())["config"]
    assert (config["refinement"], config["mrtf-modules"]) == written


def test_config_json_says_fmds_has_no_hard_features(tmp_path: Path) -> None:
    for method, mu in (("fmds", 0.0), ("hfmds", 0.5)):
        f = federation(tmp_path / method, strategy=method)
        assert json.loads((f.folder / "config.json").read_text())["config"]["hfmds-mu"] == mu
