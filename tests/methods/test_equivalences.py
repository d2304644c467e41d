"""Section "equivalences": limits in which one method must be another, bit for bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation
from torch.nn import functional as F

from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.rng import torch_generator
from fedsyn_flwr.server.averaging import PIECE, TOGETHER, RunningAverage

QUICK: dict[str, Any] = {
    "num-server-rounds": 4,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 5,
    "limit-train": 300,
    "model-width": 0.25,
}


def run(folder: Path, clients: int = 4, **keys: Any) -> Federation:
    return Federation(folder, clients, **{**QUICK, **keys}).run()


def final(folder: Path, clients: int = 4, **keys: Any) -> str:
    return digest(run(folder, clients, **keys).model)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_alpha_one_is_fedavg(tmp_path: Path, norm: str) -> None:
    fedavg = final(tmp_path / "a", strategy="fedavg", norm=norm)
    assert final(tmp_path / "b", strategy="hfmds", norm=norm, **{"hfmds-alpha": 1}) == fedavg
    assert final(tmp_path / "c", strategy="hfmds", norm=norm) != fedavg


@pytest.mark.parametrize("level", ["vector", "map"])
def test_mu_zero_is_fmds(tmp_path: Path, level: str) -> None:
    keys = {"feature-level": level}
    fmds = final(tmp_path / "a", strategy="fmds", **keys)
    assert final(tmp_path / "b", strategy="hfmds", **keys, **{"hfmds-mu": 0}) == fmds
    assert final(tmp_path / "c", strategy="hfmds", **keys) != fmds


def test_ce_only_ignores_mu(tmp_path: Path) -> None:
    ce = final(tmp_path / "a", strategy="hfmds", **{"synthesis-loss": "ce"})
    again = {"synthesis-loss": "ce", "hfmds-mu": 2.0}
    assert final(tmp_path / "b", strategy="hfmds", **again) == ce
    assert final(tmp_path / "c", strategy="hfmds", **{"synthesis-loss": "ce+fm"}) != ce


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_one_client_is_centralised_training(tmp_path: Path, norm: str) -> None:
    """Against a loop written here with torch's own model, optimiser and batches."""
    keys = {"strategy": "fedavg", "norm": norm, "num-server-rounds": 2, "channels-last": False}
    federation = run(tmp_path, clients=1, **keys)
    settings = federation.worker.settings
    from fedsyn_flwr import build

    model = build.network(settings, federation.worker.data.shape)
    images = federation.worker.data
    for server_round in (1, 2):
        optimiser = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5, foreach=False
        )
        order = torch_generator(0, server_round, 0, "batches")
        permutation = torch.randperm(300, generator=order)
        model.train()
        for start in range(0, 300, 32):
            chosen = federation.worker.partitions[0][permutation[start : start + 32]]
            optimiser.zero_grad()
            F.cross_entropy(model(images.x(chosen)), images.y(chosen)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 100)
            optimiser.step()
    federation.strategy.flat.load(federation.model)
    for name, tensor in federation.strategy.flat.named().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_same_seed_same_bits_and_another_seed_others(tmp_path: Path) -> None:
    first = final(tmp_path / "a", strategy="hfmds")
    assert final(tmp_path / "b", strategy="hfmds") == first
    assert final(tmp_path / "c", strategy="hfmds", seed=1) != first


def test_every_method_trains_the_same_clients(tmp_path: Path) -> None:
    chosen = {}
    for strategy in ("fedavg", "fmds"):
        f = run(tmp_path / strategy, clients=8, strategy=strategy, **{"fraction-fit": 0.4})
        chosen[strategy] = [
            (k, call["round"])
            for k, proxy in enumerate(f.proxies)
            for call in proxy.calls
            if call["phase"] == "train"
        ]
        assert len(chosen[strategy]) == 4 * 3  # four rounds of 0.4 · 8
    assert chosen["fedavg"] == chosen["fmds"]


# ---- the stock server


def test_stock_server_ends_in_the_same_model(tmp_path: Path) -> None:
    """Flower's own Server drives the same strategy to the same bits."""
    from flwr.server import Server

    ours = final(tmp_path / "a", strategy="hfmds")
    f = Federation(tmp_path / "b", 4, **{**QUICK, "strategy": "hfmds"})
    stock = Server(client_manager=f.manager, strategy=f.strategy)
    stock.fit(4, None)
    assert digest(f.model) == ours


# ---- averaging


def test_average_by_hand() -> None:
    def vectors(value: float, count: int) -> dict[str, np.ndarray]:
        return {
            "trainable": np.full(3, value, np.float32),
            "buffers": np.full(2, 10 * value, np.float32),
            "counters": np.array([count]),
        }

    average = RunningAverage()
    average.add(vectors(1.0, 7), 30)
    average.add(vectors(5.0, 4), 10)
    mean = average.mean()
    assert mean["trainable"].tolist() == [2.0, 2.0, 2.0]
    assert mean["buffers"].tolist() == [20.0, 20.0]
    assert mean["counters"].tolist() == [7]
    assert mean["trainable"].dtype == np.float32
    assert mean["counters"].dtype == np.int64


@pytest.mark.parametrize("size", [0, 1, PIECE, 2 * PIECE + 3])
@pytest.mark.parametrize("count", [1, TOGETHER, 2 * TOGETHER + 1])
@pytest.mark.parametrize("known", [True, False])
def test_sums_of_some_at_a_time_are_the_sums(size: int, count: int, known: bool) -> None:
    """To the bit: whatever waits for others, and however the vectors are cut."""
    rng = np.random.default_rng(0)
    models, weights = rng.normal(size=(count, size)).astype(np.float32), rng.uniform(size=count)
    average, sums = RunningAverage(expected=count if known else 0), np.zeros(size)
    for model, weight in zip(models, weights, strict=True):
        vectors = {"trainable": model, "buffers": model[:0], "counters": np.zeros(0, np.int64)}
        average.add(vectors, float(weight))
        sums += weight * model.astype(np.float64)
    expected = (sums / average.weight).astype(np.float32)
    assert average.weight == pytest.approx(weights.sum())
    for _ in range(2):
        assert average.mean()["trainable"].tobytes() == expected.tobytes()


def test_the_last_models_wait_for_no_other() -> None:
    vectors = {"trainable": np.ones(3, np.float32), "buffers": np.ones(1, np.float32)}
    average, waiting = RunningAverage(expected=2 * TOGETHER + 3), []
    for _ in range(2 * TOGETHER + 3):
        average.add({**vectors, "counters": np.zeros(0, np.int64)}, 1.0)
        waiting.append(len(average.waiting))
    assert waiting == [1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 1]


@pytest.mark.parametrize(("weighting", "expected"), [("examples", 2.0), ("uniform", 3.0)])
def test_weighting(tmp_path: Path, weighting: str, expected: float) -> None:
    f = Federation(tmp_path, 2, **{**QUICK, "strategy": "fedavg", "weighting": weighting})
    sizes, values = (30, 10), (1.0, 5.0)
    weights = [f.strategy.aggregator.weight(n) for n in sizes]
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert mean == expected
    assert f.strategy.aggregator.weight(0) == 0


# ---- who gets the pool


def test_pool_is_sent_once_per_version_and_counted(tmp_path: Path) -> None:
    f = run(tmp_path, clients=3, strategy="hfmds", **{"num-server-rounds": 5})
    lines = [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]
    down = [x["bytes/down"] for x in lines]
    plain = down[0]
    pool = f.strategy.pool.arrays
    size = pool["images"].nbytes + pool["labels"].nbytes
    # rounds 2 and 4: a model for the synthesis, then model and pool for the training
    for t in (1, 3):
        assert down[t] - 2 * plain == pytest.approx(3 * size, abs=3 * 600)
    assert down[2] == down[4] == plain
    assert lines[1]["synthesis/pool_size"] == len(pool["labels"])
    assert lines[1]["privacy/psnr_mean"] > 0


def test_a_client_that_missed_the_broadcast_gets_it_later(tmp_path: Path) -> None:
    keys = {"fraction-fit": 0.5, "num-server-rounds": 6, "synthesis-every": 6}
    f = Federation(tmp_path, 4, **{**QUICK, **keys, "strategy": "hfmds"})
    f.server.fit(6, None)
    assert len(f.strategy.pool.holders) == 2  # only the sampled ones were sent the pool
    missed = next(iter(set(range(4)) - f.strategy.pool.holders))
    assert f.strategy.pool.missing(missed) is f.strategy.pool.arrays
    assert f.strategy.pool.missing(next(iter(f.strategy.pool.holders))) is None
