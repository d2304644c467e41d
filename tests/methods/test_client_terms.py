"""FedProx, MOON and FedMMD: exact numbers, limits, forward passes, state."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation
from tiny import fit, quadratic

from clients.fedprox import FedProxClient, FedProxParams
from fedsyn_flwr.client.own_state import OwnState
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.models.flat_model import digest

QUICK: dict[str, Any] = {
    "num-server-rounds": 4,
    "fraction-fit": 0.6,
    "limit-train": 200,
    "model-width": 0.25,
}
OFF = {"fedprox": "fedprox-mu", "moon": "moon-mu", "fedmmd": "fedmmd-lambda"}


def federation(folder: Path, clients: int = 4, **keys: Any) -> Federation:
    return Federation(folder, clients, **{**QUICK, **keys})


def final(folder: Path, **keys: Any) -> str:
    return digest(federation(folder, **keys).run().model)


# ---- FedProx by hand


def test_fedprox_by_hand(tmp_path: Path) -> None:
    """g = w: (1, 2) → (0.9, 1.8); then g + 0.5·(w - w_t) = (0.85, 1.7)."""
    client = quadratic(FedProxClient, tmp_path, FedProxParams(fedprox_mu=0.5))
    trained = fit(client, [1.0, 2.0])["model"]["trainable"]
    np.testing.assert_allclose(trained, [0.815, 1.63], rtol=1e-6)


def test_fedprox_is_anchored_at_each_rounds_own_model(tmp_path: Path) -> None:
    client = quadratic(FedProxClient, tmp_path, FedProxParams(fedprox_mu=0.5))
    fit(client, [1.0, 2.0])
    trained = fit(client, [2.0, 4.0], number=2)["model"]["trainable"]
    np.testing.assert_allclose(trained, [1.63, 3.26], rtol=1e-6)


def test_the_proximal_term_is_clipped_with_the_loss(tmp_path: Path) -> None:
    """From (3, 4): a step of length η to (2.94, 3.92); and again, along the same line."""
    params = FedProxParams(fedprox_mu=1000.0)
    client = quadratic(FedProxClient, tmp_path, params, clip_norm=1.0)
    trained = fit(client, [3.0, 4.0])["model"]["trainable"]
    # g + 1000·(w - w_t) = (2.94 - 60, 3.92 - 80): the second step leads back by η
    np.testing.assert_allclose(trained, [3.0, 4.0], rtol=1e-6)


# ---- section 4


@pytest.mark.parametrize("norm", ["bn", "gn"])
@pytest.mark.parametrize("strategy", OFF)
def test_weight_zero_is_fedavg(tmp_path: Path, strategy: str, norm: str) -> None:
    fedavg = final(tmp_path / "a", strategy="fedavg", norm=norm)
    assert final(tmp_path / "b", strategy=strategy, norm=norm, **{OFF[strategy]: 0}) == fedavg
    assert final(tmp_path / "c", strategy=strategy, norm=norm) != fedavg


@pytest.mark.parametrize("strategy", OFF)
def test_the_term_reaches_the_model_as_its_weight_grows(tmp_path: Path, strategy: str) -> None:
    """FedProx with a huge weight stays at w_t, the others move features visibly."""
    keys = {"num-server-rounds": 2, "fraction-fit": 1.0, "momentum": 0.0}
    plain = federation(tmp_path / "a", strategy="fedavg", **keys)
    start = plain.model["trainable"].copy()
    heavy = federation(tmp_path / "b", strategy=strategy, **keys, **{OFF[strategy]: 10.0}).run()
    moved = np.linalg.norm(plain.run().model["trainable"] - start)
    apart = np.linalg.norm(heavy.model["trainable"] - plain.model["trainable"])
    assert apart > 0.05 * moved
    if strategy == "fedprox":
        assert np.linalg.norm(heavy.model["trainable"] - start) < 0.8 * moved


# ---- what the terms cost


class Passes:
    """Counts forward passes through frozen networks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[int] = Counter()
        original = SplitModel.forward_features

        def counting(model: SplitModel, x: Any) -> Any:
            self.seen[id(model)] += 1
            return original(model, x)

        monkeypatch.setattr(SplitModel, "forward_features", counting)

    def of(self, f: Federation) -> list[int]:
        return [self.seen[id(spare.module)] for spare in f.worker.spares]


def steps_per_round(f: Federation) -> int:
    """Batches of 32 of every client, a lone last sample joined to the batch before."""
    sizes = [len(part) for part in f.worker.partitions]
    return sum(max(1, -(-n // 32) - (n % 32 == 1 and n > 32)) for n in sizes if n)


def test_forward_passes_are_those_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"fraction-fit": 1.0, "num-server-rounds": 3}
    passes = Passes(monkeypatch)
    mmd = federation(tmp_path / "mmd", strategy="fedmmd", **keys).run()
    assert passes.of(mmd) == [3 * steps_per_round(mmd)]
    moon = federation(tmp_path / "moon", strategy="moon", **keys).run()
    assert passes.of(moon) == [2 * steps_per_round(moon)] * 2  # none in a client's first round
    for strategy, key in OFF.items():
        off = federation(tmp_path / f"{strategy}-off", strategy=strategy, **keys, **{key: 0}).run()
        assert off.worker.spares == []


def test_operations_are_counted_round_by_round(tmp_path: Path) -> None:
    """MOON: as FedAvg in a client's first round, then two forward passes more."""
    keys = {"fraction-fit": 1.0, "num-server-rounds": 2}
    flops = {}
    for strategy in ("fedavg", "moon", "fedmmd"):
        f = federation(tmp_path / strategy, strategy=strategy, **keys).run()
        lines = (f.folder / "metrics.jsonl").read_text().splitlines()
        flops[strategy] = [json.loads(x)["flops/training"] for x in lines]
    first, second = flops["moon"]
    plain = flops["fedavg"][0]
    assert first == plain == flops["fedavg"][1]
    # forward and backward are a little less than three forward passes: x needs no gradient
    share = (second / plain - 1) / 2
    assert 1 / 3 <= share < 1 / 2
    for counted in flops["fedmmd"]:  # one pass, and the products of the distances
        assert share < counted / plain - 1 < 2 * share


# ---- MOON's previous model


def test_moon_is_fedavg_in_a_clients_first_round(tmp_path: Path) -> None:
    keys = {"fraction-fit": 1.0}
    one = {**keys, "num-server-rounds": 1}
    two = {**keys, "num-server-rounds": 2}
    assert final(tmp_path / "a", strategy="moon", **one) == final(
        tmp_path / "b", strategy="fedavg", **one
    )
    assert final(tmp_path / "c", strategy="moon", **two) != final(
        tmp_path / "d", strategy="fedavg", **two
    )


def test_frozen_models_are_what_was_received_and_kept(tmp_path: Path) -> None:
    """With one client, round 3 contrasts the model of round 2 with itself; BatchNorm included."""
    keys = {"norm": "bn", "fraction-fit": 1.0, "num-server-rounds": 3}
    f = federation(tmp_path, clients=1, strategy="moon", **keys).run()
    kept = digest(f.worker.state(f.strategy.codec.run).client(0).load(2))
    assert [digest(spare.vectors()) for spare in f.worker.spares] == [kept, kept]
    assert digest(f.worker.state(f.strategy.codec.run).client(0).load(3)) == digest(f.model)


def test_a_client_finds_what_it_wrote_and_no_other_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[tuple[str, int], str] = {}
    found: list[bool] = []
    save, load = OwnState.save, OwnState.load

    def saving(own: OwnState, arrays: Any) -> None:
        kept[own.round.run, own.round.partition] = digest(arrays)
        save(own, arrays)

    def loading(own: OwnState) -> Any:
        state = load(own)
        expected = kept.get((own.round.run, own.round.partition))
        assert (digest(state) if state else None) == expected
        found.append(state is not None)
        return state

    monkeypatch.setattr(OwnState, "save", saving)
    monkeypatch.setattr(OwnState, "load", loading)
    keys = {"strategy": "moon", "fraction-fit": 0.5, "num-server-rounds": 6}
    for name in ("one", "two"):  # the same nodes
        f = federation(tmp_path / name, **keys, **{"state-dir": str(tmp_path / "state")}).run()
        lines = (f.folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(x)["clients/failed"] for x in lines] == [0] * 6
    assert found[:12].count(False) == found[12:].count(False) == 4  # each client's first time
    assert sum(found) == 2 * (12 - 4)


def test_a_diverged_client_does_not_keep_its_model(tmp_path: Path) -> None:
    """Its NaN would come back in every later round."""
    keys = {"learning-rate": 1e30, "clip-norm": 0, "fraction-fit": 1.0, "local-epochs": 3}
    for strategy in ("moon", "scaffold"):
        f = federation(tmp_path / strategy, strategy=strategy, **keys).run()
        assert json.loads((f.folder / "status.json").read_text())["status"] == "stopped"
        stores = [f.worker.state(f.strategy.codec.run).client(k) for k in range(4)]
        assert [s.versions() for s in stores] == [[]] * 4


def test_moon_on_a_projection_head(tmp_path: Path) -> None:
    f = federation(tmp_path, strategy="moon", **{"projection-dim": 6}).run()
    assert f.strategy.flat.module.feature_dim == 6
    assert f.strategy.flat.module.classifier.weight.shape == (10, 6)
    assert json.loads((f.folder / "status.json").read_text())["status"] == "completed"
