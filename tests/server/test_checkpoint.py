"""Checkpoints: a run that died goes on to the same bits, for every method there is."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.files import write_whole
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.registry import METHODS
from fedsyn_flwr.server import checkpoint as module
from fedsyn_flwr.server.checkpoint import Checkpoint, Checkpoints

KEYS: dict[str, Any] = {
    "num-server-rounds": 7,
    "checkpoint-every": 2,
    "fraction-fit": 0.7,
    "norm": "bn",
    "limit-train": 200,
    "model-width": 0.25,
    "synthesis-every": 3,
    "synthesis-per-client": 4,
    "synthesis-steps": 3,
    "gan-rounds": 2,
    "gan-steps": 2,
    "gan-width": 4,
}


class PowerCut(BaseException):
    """Ends the server as kill -9 does: nothing after it is written."""


def federation(folder: Path, **keys: Any) -> Federation:
    return Federation(folder, 4, **{**KEYS, **keys})


def cut(f: Federation, monkeypatch: pytest.MonkeyPatch, at_round: int, where: str) -> None:
    """Run until the power goes in ``at_round``, before or after that round's training."""
    original = getattr(f.strategy, where)

    def dying(server_round: int, *rest: Any) -> Any:
        if server_round == at_round and where == "evaluate":
            raise PowerCut
        result = original(server_round, *rest)
        if server_round == at_round:
            raise PowerCut
        return result

    monkeypatch.setattr(f.strategy, where, dying)
    monkeypatch.setattr(f.server, "close", lambda *_: None)
    with pytest.raises(PowerCut):
        f.server.fit(KEYS["num-server-rounds"], None)
    monkeypatch.undo()


@pytest.mark.parametrize("where", ["before_fit", "evaluate"])
@pytest.mark.parametrize("strategy", METHODS)
def test_resumed_run_ends_in_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, where: str
) -> None:
    whole = federation(tmp_path / "whole", strategy=strategy).run()
    cut(federation(tmp_path / "cut", strategy=strategy), monkeypatch, 6, where)
    resumed = federation(tmp_path / "cut", strategy=strategy, resume=True)
    assert resumed.server.tracker.rounds == 4  # the checkpoint before round 6
    resumed.run()
    assert digest(resumed.model) == digest(whole.model)
    assert json.loads((resumed.folder / "status.json").read_text())["status"] == "completed"

    def lines(f: Federation) -> list[dict[str, Any]]:
        return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]

    assert [x["round"] for x in lines(resumed)] == list(range(1, 8))
    for ours, theirs in zip(lines(resumed), lines(whole), strict=True):
        assert ours["server/test_accuracy"] == theirs["server/test_accuracy"]


def test_death_before_the_first_checkpoint_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = federation(tmp_path / "whole", strategy="hfmds").run()
    cut(federation(tmp_path / "cut", strategy="hfmds"), monkeypatch, 1, "evaluate")
    resumed = federation(tmp_path / "cut", strategy="hfmds", resume=True).run()
    assert digest(resumed.model) == digest(whole.model)


def test_death_while_writing_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two files of a pair, and in the middle of the arrays."""
    whole = federation(tmp_path / "whole", strategy="hfmds").run()
    dying = federation(tmp_path / "cut", strategy="hfmds")

    def no_json(path: Path, content: str | bytes) -> None:
        if "round-4" in path.name:
            raise PowerCut
        write_whole(path, content)

    monkeypatch.setattr(module, "write_whole", no_json)
    monkeypatch.setattr(dying.server, "close", lambda *_: None)
    with pytest.raises(PowerCut):
        dying.server.fit(7, None)
    monkeypatch.undo()
    names = {p.name for p in (dying.folder / "checkpoints").iterdir()}
    assert "round-4.safetensors" in names
    assert "round-4.json" not in names
    (dying.folder / "checkpoints" / ".round-4.safetensors.part").write_bytes(b"half")
    resumed = federation(tmp_path / "cut", strategy="hfmds", resume=True)
    assert resumed.server.tracker.rounds == 2
    assert digest(resumed.run().model) == digest(whole.model)


def test_a_stopped_run_can_go_on_once_the_cause_is_gone(tmp_path: Path) -> None:
    keys = {"strategy": "hfmds", "min-success-fraction": 1.0}
    whole = federation(tmp_path / "whole", **keys).run()
    broken = federation(tmp_path / "cut", **keys)
    original = broken.worker.fetch
    calls = {"n": 0}

    def failing(*args: Any) -> Any:
        calls["n"] += 1
        if calls["n"] > 24:
            raise MemoryError("no memory left")
        return original(*args)

    broken.worker.fetch = failing
    broken.run()
    status = json.loads((broken.folder / "status.json").read_text())
    assert status["status"] == "stopped"
    assert "no memory left" in status["reason"]
    resumed = federation(tmp_path / "cut", **keys, resume=True).run()
    assert digest(resumed.model) == digest(whole.model)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def broken_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cut(federation(tmp_path, strategy="hfmds"), monkeypatch, 6, "evaluate")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"learning-rate": 0.01}, "learning-rate = 0.05, this run has 0.01"),
        ({"strategy": "fmds"}, "strategy = 'hfmds', this run has 'fmds'"),
        ({"seed": 3}, "seed = 0, this run has 3"),
        ({"model-width": 0.5}, "is of layout"),
    ],
)
def test_checkpoint_of_another_configuration_is_refused(
    broken_run: Path, change: dict[str, Any], complaint: str
) -> None:
    before = tree(broken_run)
    with pytest.raises(UserError, match=complaint):
        federation(broken_run, **{"strategy": "hfmds", **change}, resume=True)
    assert tree(broken_run) == before


def test_checkpoint_of_another_version_is_refused(
    broken_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "__version__", "99.0")
    with pytest.raises(UserError, match=r"is of version .*, this is 99\.0"):
        federation(broken_run, strategy="hfmds", resume=True)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("json", "flip"),
        ("json", "cut"),
        ("safetensors", "flip"),
        ("safetensors", "cut"),
        ("safetensors", "remove"),
    ],
)
def test_damaged_checkpoint_is_refused_and_the_one_before_works(
    broken_run: Path, suffix: str, damage: str
) -> None:
    victim = broken_run / "run" / "checkpoints" / f"round-4.{suffix}"
    raw = bytearray(victim.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw if damage == "flip" else raw[: len(raw) // 2])
    if damage == "remove":
        victim.unlink()
    before = tree(broken_run)
    with pytest.raises(UserError, match=r"round-4\.safetensors is damaged: remove round-4\.json"):
        federation(broken_run, strategy="hfmds", resume=True)
    assert tree(broken_run) == before
    for name in ("json", "safetensors"):
        victim.with_suffix(f".{name}").unlink(missing_ok=True)
    assert federation(broken_run, strategy="hfmds", resume=True).server.tracker.rounds == 2


def test_a_completed_run_and_a_missing_one_are_not_resumed(tmp_path: Path) -> None:
    federation(tmp_path, strategy="fedavg").run()
    with pytest.raises(UserError, match="is completed"):
        federation(tmp_path, strategy="fedavg", resume=True)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(UserError, match="holds no run"):
        federation(tmp_path, strategy="fedavg", resume=True)
    assert not (tmp_path / "run").exists()


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    f = federation(tmp_path, strategy="fedavg").run()
    names = sorted(p.name for p in (f.folder / "checkpoints").iterdir())
    expected = ["round-6.json", "round-6.safetensors", "round-7.json", "round-7.safetensors"]
    assert names == expected


def test_round_trip(tmp_path: Path) -> None:
    f = federation(tmp_path, strategy="fedavg")
    store = Checkpoints(tmp_path / "c", f.worker.settings, "layout")
    assert store.latest() is None
    arrays = {"a/b": np.arange(3), "empty": np.zeros((0, 2), np.float32)}
    store.save(Checkpoint(3, "run", f.model, arrays, {"version": 4, "names": ["x"]}))
    back = store.latest()
    assert (back.round, back.run, back.scalars) == (3, "run", {"version": 4, "names": ["x"]})
    assert digest(back.model) == digest(f.model)
    assert all(np.array_equal(back.arrays[k], arrays[k]) for k in arrays)
    assert os.listdir(tmp_path / "c") != []
