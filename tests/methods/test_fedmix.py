"""FedMix and NaiveMix in a federation: what is sent, pooled, reported and trained on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation

from clients.fedmix import FedMixClient
from fedsyn_flwr.messages.payload import Groups
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.report.samples import read_pool
from fedsyn_flwr.synthesis.pool import problem_with

QUICK: dict[str, Any] = {
    "strategy": "fedmix",
    "num-server-rounds": 3,
    "limit-train": 200,
    "model-width": 0.25,
}


def federation(folder: Path, clients: int = 4, **keys: Any) -> Federation:
    return Federation(folder, clients, **{**QUICK, **keys})


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def test_averages_by_hand(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"fedmix-mean-size": 3})
    data, client = f.worker.data, FedMixClient(f.worker, 1)
    x, y = client.averages(torch.tensor([[0, 2, 4], [1, 3, 5]]))
    a, b, c = client.indices[[1, 3, 5]].tolist()
    pixels = (data.images[a].double() + data.images[b] + data.images[c]) / 3 / 255
    torch.testing.assert_close(x[1].double(), (pixels - 0.3053) / 0.3759, rtol=0, atol=1e-6)
    counts = np.bincount([int(data.labels[i]) for i in (a, b, c)], minlength=10)
    assert y[1].tolist() == pytest.approx(counts / 3)


# ---- in a run


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_lambda_zero_is_fedavg(tmp_path: Path, norm: str) -> None:
    def final(name: str, **keys: Any) -> str:
        return digest(federation(tmp_path / name, norm=norm, **keys).run().model)

    fedavg = final("a", strategy="fedavg")
    assert final("b", strategy="fedmix", **{"fedmix-lambda": 0}) == fedavg
    assert final("c", strategy="naivemix", **{"fedmix-lambda": 0}) == fedavg
    assert len({final("d"), final("e", strategy="naivemix"), fedavg}) == 3


def test_averages_are_sent_once_and_counted(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"fedmix-mean-size": 5, "partition": "iid"}).run()
    assert [len(p) for p in f.worker.partitions] == [50] * 4
    pool, rows = f.strategy.pool.arrays, lines(f)
    assert pool["images"].shape == (40, 1, 8, 8)
    assert pool["labels"].shape == (40, 10)
    np.testing.assert_allclose(pool["labels"].sum(axis=1), 1, rtol=1e-6)
    size = pool["images"].nbytes + pool["labels"].nbytes
    plain = rows[1]["bytes/down"]
    assert plain == rows[2]["bytes/down"]
    # four messages without a model, four with model and pool
    assert rows[0]["bytes/down"] - plain == pytest.approx(4 * size, abs=8 * 600)
    assert rows[0]["bytes/up"] - rows[1]["bytes/up"] == pytest.approx(size, abs=4 * 600)
    assert rows[0]["synthesis/pool_size"] == 40
    assert 0 < rows[0]["seconds/means"] <= rows[0]["seconds/round"]
    assert rows[0]["client_seconds/means"] > 0
    phases = [call["phase"] for call in f.proxies[2].calls]
    assert phases == ["means", "train", "train", "train"]


def test_privacy_pairs_an_average_with_each_of_its_images(tmp_path: Path) -> None:
    """One client, one average of all four images: PSNR by hand, and no guess can be wrong."""
    keys = {"limit-train": 4, "fedmix-mean-size": 8, "num-server-rounds": 1}
    f = federation(tmp_path, clients=1, **keys).run()
    images = f.worker.data.images.double() / 255
    psnr = [-10 * np.log10(((images.mean(0) - x) ** 2).mean().item()) for x in images]
    row = lines(f)[0]
    assert row["privacy/psnr_mean"] == pytest.approx(np.mean(psnr), abs=1e-3)
    assert row["privacy/psnr_max"] == pytest.approx(np.max(psnr), abs=1e-3)
    assert row["privacy/reid_chance"] == row["privacy/reid_pixel"] == 1


def test_pool_file_names_the_main_class(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"synthetic-dtype": "uint8", "num-server-rounds": 1}).run()
    found = read_pool(f.folder)
    assert found.labels.tolist() == f.strategy.pool.arrays["labels"].argmax(axis=1).tolist()
    assert np.array_equal(found.images, f.strategy.pool.arrays["images"].astype(np.float32) / 255)


def test_limited_pool_is_balanced_over_the_main_classes(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"pool-max": 10, "fedmix-mean-size": 1}).run()
    assert np.bincount(f.strategy.pool.arrays["labels"].argmax(axis=1)).tolist() == [1] * 10


def test_clients_of_few_or_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = np.split(np.arange(100), [0, 1, 4])
    monkeypatch.setattr("fedsyn_flwr.build.partitions", lambda *_: parts)
    f = federation(tmp_path, **{"limit-train": 100, "norm": "bn"}).run()
    assert [row["clients/failed"] for row in lines(f)] == [0, 0, 0]
    assert len(f.strategy.pool.arrays["labels"]) == 1 + 1 + 96 // 5


def test_too_few_averages_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    f = federation(tmp_path)

    def broken(client: FedMixClient, groups: Groups) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(FedMixClient, "send_means", broken)
    f.run()
    status = json.loads((f.folder / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["reason"].startswith("0 of 4 clients sent averages: client 0: ")
    assert "no memory left" in status["reason"]


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (np.zeros(2, np.int64), "with labels"),
        (np.full((2, 3), 1 / 3, np.float32), "with labels"),
        (np.full((2, 10), 0.1), "of type float64"),
        (np.full((2, 10), 0.2, np.float32), "no shares"),
        (np.array([[2.0, -1.0] + [0.0] * 8] * 2, np.float32), "no shares"),
    ],
)
def test_bad_shares_are_refused(labels: np.ndarray, complaint: str) -> None:
    images = np.zeros((2, 1, 2, 2), np.float32)

    def problem(labels: np.ndarray) -> str | None:
        part = {"images": images, "labels": labels}
        return problem_with(part, (1, 2, 2), 10, 4, "float32", soft=True)

    assert problem(np.full((2, 10), 0.1, np.float32)) is None
    assert complaint in str(problem(labels))
