"""The pool on the server: what a run leaves of it on disk, and who is sent it again."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation
from safetensors.numpy import load_file

from fedsyn_flwr.report.samples import read_pool
from fedsyn_flwr.server.tracking import Tracker

QUICK: dict[str, Any] = {
    "strategy": "hfmds",
    "num-server-rounds": 5,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 3,
    "limit-train": 100,
    "model-width": 0.25,
}


def federation(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, 3, **{**QUICK, **keys})


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_run_leaves_its_last_pool_as_pixels(tmp_path: Path, dtype: str) -> None:
    f = federation(tmp_path, **{"synthetic-dtype": dtype}).run()
    sent, found = f.strategy.pool.arrays, read_pool(f.folder)
    pixels = sent["images"] / 255 if dtype == "uint8" else sent["images"] * 0.3759 + 0.3053
    assert np.abs(found.images - pixels.clip(0, 1)).max() <= 0.5 / 255 + 1e-6
    assert found.labels.tolist() == sent["labels"].tolist()
    assert f.server.tracker.pool_version == 4


def test_each_version_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    f, written = federation(tmp_path), []
    original = f.strategy.pool.pixels
    monkeypatch.setattr(f.strategy.pool, "pixels", lambda: written.append(1) or original())
    f.run()
    assert len(written) == 2  # rounds 2 and 4 of five


def test_run_without_images_leaves_no_file(tmp_path: Path) -> None:
    f = federation(tmp_path, strategy="fedavg").run()
    assert not (f.folder / "pool.safetensors").exists()


def test_failed_write_leaves_the_pool_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(tmp_path)
    first, second = ({"images": np.zeros((n, 1, 2, 2), np.uint8)} for n in (1, 2))
    tracker.pool(4, lambda: first)

    def broken(arrays: object, name: str) -> None:
        Path(name).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        tracker.pool(8, lambda: second)
    assert load_file(tmp_path / "pool.safetensors")["images"].shape == (1, 1, 2, 2)


def test_node_that_lost_the_pool_is_sent_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients fail in round 3, which is therefore repeated, and then with the pool."""
    f = federation(tmp_path)
    original = f.strategy.before_fit

    def losing(server_round: int) -> None:
        original(server_round)
        if server_round == 3:
            shutil.rmtree(f.worker.state(f.strategy.codec.run).pool().folder)

    monkeypatch.setattr(f.strategy, "before_fit", losing)
    f.run()
    status = json.loads((f.folder / "status.json").read_text())
    assert status["status"] == "completed", status["reason"]
    lines = [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]
    assert [x["clients/failed"] for x in lines] == [0, 0, 3, 0, 0]
