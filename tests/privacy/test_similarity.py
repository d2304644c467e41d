"""What the privacy report says, against numbers known beforehand and against NumPy."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation

from fedsyn_flwr.client.observer import train_observer
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.privacy import similarity
from fedsyn_flwr.privacy.audit import privacy_report
from fedsyn_flwr.server.metric_means import MetricMeans

QUICK: dict[str, Any] = {
    "strategy": "hfmds",
    "num-server-rounds": 2,
    "limit-train": 120,
    "model-width": 0.25,
    "synthesis-every": 2,
    "synthesis-per-client": 10,
    "synthesis-steps": 3,
}


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def test_psnr_by_hand() -> None:
    x, reference = torch.zeros(3, 1, 4, 4), torch.zeros(3, 1, 4, 4)
    x[0] += 0.1  # MSE 0.01
    x[1] += 7  # clamped to 1
    expected = [20.0, 0.0, 100.0]
    assert similarity.psnr(x, reference).tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("size", "radius"), [(4, 1), (8, 3), (28, 5)])
def test_ssim_equals_the_formula(size: int, radius: int) -> None:
    """A plain loop over pixels: Gaussian window, reflected borders, the usual constants."""
    x, y = noise(2, 1, size, size), noise(3, 1, size, size)[1:]
    offsets = np.arange(-radius, radius + 1)
    g = np.exp(-((offsets / (1.5 * radius / 5)) ** 2) / 2)
    window = np.outer(g, g) / np.outer(g, g).sum()
    for i, value in enumerate(similarity.ssim(x, y).tolist()):
        a, b = (np.pad(v[i, 0].double().numpy(), radius, mode="reflect") for v in (x, y))
        found = []
        for r in range(size):
            for c in range(size):
                s = np.s_[r : r + 2 * radius + 1, c : c + 2 * radius + 1]
                ma, mb = (window * a[s]).sum(), (window * b[s]).sum()
                va = (window * a[s] ** 2).sum() - ma**2
                vb = (window * b[s] ** 2).sum() - mb**2
                cov = (window * a[s] * b[s]).sum() - ma * mb
                top = (2 * ma * mb + 1e-4) * (2 * cov + 9e-4)
                found.append(top / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
        assert value == pytest.approx(np.mean(found), abs=1e-4)


def test_ssim_of_equal_images_is_one() -> None:
    for size in (4, 8, 32):
        x = noise(2, 3, size, size)
        assert similarity.ssim(x, x).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_nearest_by_hand() -> None:
    real = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    synthetic = torch.tensor([[0.1, 0.0], [0.1, 0.0], [0.0, 2.0]])
    pieces = (piece for piece in real.split(2))
    where, found = similarity.nearest(synthetic, pieces, torch.tensor([0, 1, 2]))
    assert where.tolist() == [0, 0, 2]
    assert found.tolist() == [True, False, True]


def test_a_duplicate_of_the_paired_image_does_not_hide_it() -> None:
    real = torch.tensor([[1.0], [1.0], [2.0]])
    _, found = similarity.nearest(torch.tensor([[1.1]]), [real], torch.tensor([1]))
    assert found.tolist() == [True]


def test_likeness_takes_mean_percentile_and_maximum() -> None:
    real = torch.zeros(21, 1, 8, 8)
    synthetic = real + 10 ** -(torch.arange(21.0) / 20).view(21, 1, 1, 1)  # PSNR 0, 1, … 20
    numbers = similarity.likeness(synthetic, real)
    assert numbers["privacy/psnr_mean"] == pytest.approx(10, abs=1e-3)
    assert numbers["privacy/psnr_p95"] == pytest.approx(19, abs=1e-3)
    assert numbers["privacy/psnr_max"] == pytest.approx(20, abs=1e-3)
    assert numbers["privacy/ssim_max"] >= numbers["privacy/ssim_p95"] > numbers["privacy/ssim_mean"]


# ---- a client's report


def report(tmp_path: Path, change: Any, **keys: Any) -> dict[str, float]:
    """Of client 0's own images, changed; the first ten are the paired ones."""
    f = Federation(tmp_path, 2, **{**QUICK, "partition": "iid", **keys})
    indices, paired = f.worker.partitions[0], torch.arange(10)
    observer = train_observer(f.worker, 0, 2, f.worker.state("r").client("0-observer"))
    x = f.worker.data.x(indices[paired])
    return privacy_report(f.worker.data, indices, paired, change(x), 500, observer)


def test_copies_are_found_out(tmp_path: Path) -> None:
    numbers = report(tmp_path, lambda x: x, **{"eval-batch-size": 7})
    assert numbers["privacy/reid_pixel"] == numbers["privacy/reid_feature"] == 1
    assert numbers["privacy/reid_chance"] == 1 / 60
    assert numbers["privacy/nearest_distance"] == 0
    assert numbers["privacy/psnr_mean"] == 100
    assert numbers["privacy/ssim_mean"] == pytest.approx(1, abs=1e-5)


def test_noise_is_not(tmp_path: Path) -> None:
    numbers = report(tmp_path, lambda x: 3 * torch.randn(x.shape))
    assert numbers["privacy/reid_pixel"] <= 0.3
    assert numbers["privacy/reid_feature"] <= 0.3
    assert 0.3 < numbers["privacy/nearest_distance"] < 0.7
    assert numbers["privacy/psnr_max"] < 10


def test_shuffled_copies_show_in_the_distance_only(tmp_path: Path) -> None:
    """Every image is a real one, but another than its pair."""
    numbers = report(tmp_path, lambda x: x.roll(1, 0))
    assert numbers["privacy/reid_pixel"] == 0
    assert numbers["privacy/nearest_distance"] == 0
    assert numbers["privacy/psnr_mean"] < 30


def test_observer_is_independent_trained_and_kept(tmp_path: Path) -> None:
    f = Federation(tmp_path, 2, **QUICK)
    store = f.worker.state("r").client("0-observer")
    observers = [train_observer(f.worker, 0, 15, s) for s in (store, store)]
    assert store.versions() == [0]
    kept, again = (dict(m.named_parameters()) for m in observers)
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    run = dict(f.worker.flat.module.named_parameters())
    assert not torch.equal(kept["trunk.0.weight"], run["trunk.0.weight"])
    indices = f.worker.partitions[0]
    with torch.no_grad():
        guess = observers[0](f.worker.data.x(indices)).argmax(1)
    majority = torch.bincount(f.worker.data.y(indices)).max() / len(indices)
    assert (guess == f.worker.data.y(indices)).float().mean() > majority


# ---- in a run


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def test_report_does_not_touch_the_training(tmp_path: Path) -> None:
    """Same bits without a report, with one, and with an observer."""
    keys = ({"privacy-report": False}, {"privacy-report": True}, {"privacy-epochs": 1})
    runs = [
        Federation(tmp_path / str(i), 3, **{**QUICK, "norm": "bn", **k}).run()
        for i, k in enumerate(keys)
    ]
    assert len({digest(f.model) for f in runs}) == 1
    names = [{k for k in lines(f)[1] if k.startswith("privacy/")} for f in runs]
    assert names[0] == set()
    assert names[2] - names[1] == {"privacy/reid_feature"}
    assert names[1] == {
        *(f"privacy/{m}_{s}" for m in ("psnr", "ssim") for s in ("mean", "p95", "max")),
        "privacy/nearest_distance",
        "privacy/reid_pixel",
        "privacy/reid_chance",
    }
    assert all(not any(k.startswith("privacy/") for k in lines(f)[0]) for f in runs)


def test_clients_count_by_their_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes 0, 1 and 99 with B_g = 10: chance is (1·1/1 + 10·1/99) / 11."""
    parts = np.split(np.arange(100), [0, 1])
    monkeypatch.setattr("fedsyn_flwr.build.partitions", lambda *_: parts)
    f = Federation(tmp_path, 3, **{**QUICK, "limit-train": 100}).run()
    chance = lines(f)[1]["privacy/reid_chance"]
    assert chance == pytest.approx((1 + 10 / 99) / 11)


def test_means_by_hand() -> None:
    tally = MetricMeans("privacy/", "flops/")
    tally.add({"privacy/a": 1.0, "privacy/b_max": 3.0, "train-loss": 1.0, "flops/x": 2}, 3)
    tally.add({"privacy/a": 5.0, "privacy/b_max": 2.0, "privacy/c": math.nan}, 1)
    tally.add({"privacy/a": 99.0}, 0)
    assert tally.means() == {"privacy/a": 2.0, "privacy/b_max": 3.0, "flops/x": 2.0}
