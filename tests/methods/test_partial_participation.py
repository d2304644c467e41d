"""Clients that miss rounds, classes or a process: what their synthesis falls back on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation, told

from clients.hfmds import HFMDSClient
from fedsyn_flwr import config
from fedsyn_flwr.client.own_state import OwnState
from fedsyn_flwr.client.worker import Worker
from fedsyn_flwr.compute.cost_meter import Meter
from fedsyn_flwr.messages.instruction import Instruction
from fedsyn_flwr.messages.payload import pack, unpack

QUICK: dict[str, Any] = {
    "strategy": "hfmds",
    "num-server-rounds": 2,
    "limit-train": 200,
    "model-width": 0.25,
    "synthesis-every": 2,
    "synthesis-per-client": 16,
    "synthesis-steps": 3,
}


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Deal the training data by label: ``labels([[0, 1], [2]])``."""

    def deal(classes: list[list[int]], limit: int | None = None) -> None:
        def parts(_: Any, train: Any, __: int) -> list[np.ndarray]:
            return [np.flatnonzero(np.isin(train.labels, own))[:limit] for own in classes]

        monkeypatch.setattr("fedsyn_flwr.build.partitions", parts)

    return deal


def client(f: Federation, partition: int, number: int) -> HFMDSClient:
    """A client as it is in round ``number``, with the server's current model."""
    found = HFMDSClient(f.worker, partition)
    last = f.strategy.versions.last.get(partition, 0)
    found.round = Instruction(f.strategy.codec.run, number, "synthesis", last=last)
    found.own = OwnState(f.worker.state(found.round.run).client(partition), found.round)
    f.worker.flat.load(f.model)
    return found


def prototypes(found: HFMDSClient, y: list[int]) -> torch.Tensor:
    wanted = torch.tensor(y)
    x = found.worker.data.x(found.indices[: len(wanted)])
    return found.prototypes_for(x, wanted, Meter("synthesis"))


def features(found: HFMDSClient, c: int) -> torch.Tensor:
    """Mean of w_t's features of the client's images of a class."""
    with torch.no_grad():
        chosen = found.indices[found.labels == c]
        return found.flat.module.eval().forward_features(found.worker.data.x(chosen)).mean(0)


def test_client_that_never_trained_uses_its_features_under_the_received_model(
    tmp_path: Path, labels: Any
) -> None:
    labels([[0, 1], [2, 3]])
    keys = {"fraction-fit": 0.5, "num-server-rounds": 1}
    f = Federation(tmp_path, 2, **{**QUICK, **keys}).run()
    idle = next(k for k, proxy in enumerate(f.proxies) if not proxy.calls)
    found = client(f, idle, 2)
    assert found.own.load() is None
    own = [2 * idle, 2 * idle + 1]
    expected = torch.stack([features(found, c) for c in own])
    torch.testing.assert_close(prototypes(found, own), expected, rtol=1e-4, atol=1e-5)


def test_class_seen_by_one_client_reaches_all_through_the_pool(tmp_path: Path, labels: Any) -> None:
    labels([[7], [0, 1], [0, 1]])
    f = Federation(tmp_path, 3, **QUICK).run()
    counts = np.bincount(f.strategy.pool.arrays["labels"], minlength=10)
    assert counts[7] == 16
    assert counts[[0, 1]].sum() == 32
    assert counts.sum() == 48
    lines = (f.folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["clients/failed"] == 0


def test_class_absent_locally_has_no_prototype_and_gets_no_image(
    tmp_path: Path, labels: Any
) -> None:
    labels([[3, 4], [5]])
    f = Federation(tmp_path, 2, **QUICK).run()
    kept = client(f, 0, 3).own.load()
    assert np.flatnonzero(kept["known"]).tolist() == [3, 4]
    assert np.isfinite(kept["mean"]).all()
    part = client(f, 0, 3).synthesise({})[0]["synthetic"]
    assert set(part["labels"]) == {3, 4}
    assert np.isfinite(part["images"]).all()


def test_class_that_appears_later_is_taken_from_the_model(tmp_path: Path, labels: Any) -> None:
    """Known classes keep their prototype; only the missing one is computed."""
    labels([[3], [5]])
    f = Federation(tmp_path, 2, **QUICK).run()
    kept = client(f, 0, 3).own.load()
    f.worker.partitions[0] = torch.cat(f.worker.partitions)
    found = client(f, 0, 3)
    got = prototypes(found, [3, 5])
    np.testing.assert_array_equal(got[0].numpy(), kept["mean"][3])
    torch.testing.assert_close(got[1], features(found, 5), rtol=1e-4, atol=1e-5)


def test_fewer_samples_than_images_wanted_gives_fewer_images(tmp_path: Path, labels: Any) -> None:
    """No sample is used twice: copies of an image would weigh it twice in the pool."""
    labels([[0, 1], [2]], limit=5)
    f = Federation(tmp_path, 2, **QUICK).run()
    assert len(f.strategy.pool.arrays["labels"]) == 10
    found = client(f, 0, 2)
    positions = found.choose(found.generator("synthesis"))
    assert sorted(positions.tolist()) == [0, 1, 2, 3, 4]


# ---- a client process that dies

DYING = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
import numpy as np
from clients.hfmds import HFMDSClient
from fedsyn_flwr import config
from fedsyn_flwr.client.worker import Worker
run_config, message, arrays = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
worker = Worker(config.load(config.merged(run_config)), 2)
with np.load(arrays) as file:
    HFMDSClient(worker, 0).fit([file[f"arr_{i}"] for i in range(len(file.files))], message)
print("trained", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_client_process_keeps_its_prototypes(tmp_path: Path) -> None:
    """One process trains round 1 and is killed; another one synthesises in round 2."""

    def keys(state: str) -> dict[str, Any]:
        return {**QUICK, "state-dir": str(tmp_path / state)}

    def worker(state: str) -> Worker:
        return Worker(config.load(config.merged(keys(state))), 2)

    fresh = worker("killed")
    sent = pack({"model": fresh.flat.copy_vectors()}, fresh.flat.layout)
    np.savez(tmp_path / "sent.npz", *sent)
    command = [sys.executable, "-c", DYING, json.dumps(keys("killed"))]
    command += [json.dumps(told(1)), str(tmp_path / "sent.npz")]
    folder = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    dead = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (dead.stdout.strip(), dead.returncode) == ("trained", -signal.SIGKILL), dead.stderr

    one = worker("one")
    HFMDSClient(one, 0).fit(sent, told(1))
    kept = one.state("run").client(0).load(1)
    found = fresh.state("run").client(0).load(1)
    assert found["known"].any()
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in kept.items()}
    images = [
        unpack(HFMDSClient(w, 0).fit(sent, told(2, "synthesis", last=1))[0], w.flat.layout)[
            "synthetic"
        ]
        for w in (fresh, one)
    ]
    np.testing.assert_array_equal(images[0]["images"], images[1]["images"])
    lost = worker("empty")
    answer = HFMDSClient(lost, 0).fit(sent, told(2, "synthesis", last=1))[0]
    other = unpack(answer, lost.flat.layout)["synthetic"]
    assert not np.array_equal(other["images"], images[0]["images"])  # so the prototypes count
