"""What clients keep follows what the server counted: after lost answers, retries, lost folders."""

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from harness import Federation, LocalProxy

from fedsyn_flwr.server.client_versions import LOST, SAVED, ClientVersions
from fedsyn_flwr.server.requests import sample_clients

QUICK: dict[str, Any] = {
    "strategy": "scaffold",
    "momentum": 0.0,
    "num-server-rounds": 5,
    "limit-train": 300,
    "model-width": 0.25,
    "evaluate-every": 9,
}


class LosesAnswers(LocalProxy):
    """Trains, and its answer is lost in the rounds of ``lost``."""

    lost: ClassVar[dict[int, set[int]]] = {}
    kind = "lost"

    def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        result = super().fit(ins, timeout, group_id)
        if self.partition in self.lost.get(ins.config["round"], ()):
            if self.kind == "lost":
                raise ValueError("Error: Message Unavailable")
            result.parameters.tensors = result.parameters.tensors[:-1]
        return result


def losing(kind: str, rounds: dict[int, set[int]]) -> type:
    return type("Losing", (LosesAnswers,), {"lost": rounds, "kind": kind})


def federation(folder: Path, proxy: type = LocalProxy, clients: int = 6, **keys: Any) -> Federation:
    return Federation(folder, clients, proxy, **{**QUICK, **keys})


def gap(f: Federation) -> tuple[float, float]:
    """The largest of |c - mean c_i|, of the c_i the clients go on from, and of |c|."""
    kept, total = f.strategy.versions.last, np.zeros_like(f.model["trainable"], np.float64)
    for k in range(len(f.proxies)):
        if k in kept:
            total += f.worker.state(f.strategy.codec.run).client(k).load(kept[k])["control"]
    c = f.strategy.control["c"]
    return float(np.abs(c - total / len(f.proxies)).max()), float(np.abs(c).max())


# ---- by hand


def test_what_is_told_by_hand() -> None:
    kept = ClientVersions()
    assert kept.of(3) == {"last": 0, "last_settled": 0}
    kept.take(3, {SAVED: True})
    kept.take(4, {SAVED: False})
    kept.open()  # another attempt
    kept.take(5, {SAVED: True})
    kept.close(2)
    assert [kept.of(k)["last"] for k in (3, 4, 5)] == [0, 0, 2]
    kept.settle(2)
    kept.take(5, {SAVED: True})
    kept.close(3)
    assert kept.of(5) == {"last": 3, "last_settled": 2}
    other = ClientVersions()
    arrays, scalars = kept.state()
    other.restore(arrays, json.loads(json.dumps(scalars)))
    other.settle(3)
    assert other.of(5) == {"last": 3, "last_settled": 3}


def test_a_loss_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = ClientVersions()
    assert [kept.take(k, {LOST: k > 0}) for k in (0, 1, 2)] == [0, 1, 1]
    assert [r.getMessage() for r in caplog.records if "has lost" in r.getMessage()] == [
        "client 1 has lost what it kept since round 0, and goes on without (clients/state_lost "
        "counts such cases): is its state-dir gone, or another than before?"
    ]


# ---- SCAFFOLD: c is the mean of the c_i whatever happens to the answers


@pytest.mark.parametrize("kind", ["lost", "unreadable"])
def test_controls_add_up_after_an_answer_that_did_not_count(tmp_path: Path, kind: str) -> None:
    f = federation(tmp_path, losing(kind, {2: {1}, 3: {1, 4}})).run()
    assert [row["clients/failed"] for row in f.rows()] == [0, 1, 2, 0, 0]
    off, size = gap(f)
    assert off < 1e-6 < 1e-2 < size
    assert all("clients/state_lost" not in row for row in f.rows())


def test_controls_add_up_after_an_attempt_that_did_not_count(tmp_path: Path) -> None:
    """Half of the clients; too few answer at first, and others are asked in the second attempt."""
    key = {"fraction-fit": 0.5, "min-success-fraction": 0.7}
    first = sample_clients(range(12), 0.5, (0, 2, 0))
    second = sample_clients(range(12), 0.5, (0, 2, 1), avoid=first[:3])
    assert set(first[3:]) - set(second)  # some were heard in vain
    f = federation(tmp_path, losing("lost", {2: set(first[:3])}), 12, **key).run()
    assert json.loads((f.folder / "status.json").read_text())["status"] == "completed"
    assert f.rows()[1]["clients/failed"] == 3
    off, size = gap(f)
    assert off < 1e-6 < 1e-2 < size


def test_no_more_files_than_can_be_asked_for(tmp_path: Path) -> None:
    keys = {"checkpoint-every": 8, "num-server-rounds": 12, "strategy": "moon"}
    f = federation(tmp_path, LocalProxy, 2, **keys)
    seen: list[list[int]] = []
    track = f.server.tracker.round

    def watch(row: dict[str, Any]) -> None:
        track(row)
        seen.append(f.worker.state(f.strategy.codec.run).client(0).versions())

    f.server.tracker.round = watch
    f.run()
    assert max(map(len, seen)) <= 3
    assert seen[9] == [8, 9, 10]  # the checkpoint's, the last, and this round's


# ---- a state folder that is gone


def test_lost_state_is_told_and_counted(tmp_path: Path) -> None:
    f = federation(tmp_path)
    f.after(3, lambda: shutil.rmtree(tmp_path / "state"))
    f.run()
    lost = [row.get("clients/state_lost", 0) for row in f.rows()]
    assert lost == [0, 0, 0, 6, 0]


# ---- who is asked again


def test_a_second_attempt_asks_others_first() -> None:
    for seed in range(20):
        plain = sample_clients(range(8), 0.5, (seed, 3, 1))
        assert sample_clients(range(8), 0.5, (seed, 3, 1), avoid=set()) == plain
        assert not {0, 3, 6} & set(sample_clients(range(8), 0.5, (seed, 3, 1), avoid={0, 3, 6}))
        few = sample_clients(range(8), 0.5, (seed, 3, 1), avoid=set(range(6)))
        assert {6, 7} < set(few)
        assert len(few) == len(set(few)) == 4


def test_a_run_with_enough_sound_clients_goes_on(tmp_path: Path) -> None:
    """A second draw from all eight would be 0, 2, 3 and 6."""
    dead, keys = {0, 3, 6}, {"fraction-fit": 0.5, "strategy": "fedavg", "seed": 6}
    assert dead < set(sample_clients(range(8), 0.5, (6, 1, 0)))
    assert dead < set(sample_clients(range(8), 0.5, (6, 1, 1)))
    keys["num-server-rounds"] = 1
    f = federation(tmp_path, losing("lost", {1: dead}), 8, **keys).run()
    assert json.loads((f.folder / "status.json").read_text())["status"] == "completed"
