"""What could break a run in silence: overflowing teachers, remnants of pools, sizes, odd keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Federation, LocalProxy
from safetensors.numpy import load_file

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import from_parameters, is_finite, to_parameters
from fedsyn_flwr.server.method_defaults import remarks
from fedsyn_flwr.server.mrtf_target import Target
from fedsyn_flwr.simulation import resolve
from fedsyn_flwr.simulation.runner import claimed

QUICK: dict[str, Any] = {
    "strategy": "mrtf",
    "num-server-rounds": 3,
    "limit-train": 200,
    "limit-test": 90,
    "model-width": 0.25,
    "mrtf-steps": 5,
    "synthesis-every": 2,
    "synthesis-per-client": 8,
    "synthesis-steps": 2,
    "partition": "iid",
}


def federation(folder: Path, proxy: type = LocalProxy, **keys: Any) -> Federation:
    return Federation(folder, 6, proxy, **{**QUICK, **keys})


def status(f: Federation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((f.folder / "status.json").read_text())
    return found


# ---- weights that are finite, and logits that are not


class OneExplodes(LocalProxy):
    """Client 1 sends finite weights that are far too large, in round 2."""

    by = 1.0

    def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        result = super().fit(ins, timeout, group_id)
        if self.partition == 1 and ins.config["round"] == 2:
            layout = self.worker.flat.layout
            groups = from_parameters(result.parameters, layout)
            groups["model"]["trainable"] = groups["model"]["trainable"] * np.float32(self.by)
            result.parameters = to_parameters(groups, layout)
        return result


@pytest.mark.parametrize("strategy", ["mrtf", "feddf"])
def test_a_teacher_that_overflows_teaches_nobody(tmp_path: Path, strategy: str) -> None:
    proxy = type("Exploding", (OneExplodes,), {"by": 300.0})
    keys = {"num-server-rounds": 2, "mrtf-logits": "float16"}
    f = federation(tmp_path, proxy, strategy=strategy, **keys).run()
    assert status(f)["status"] == "completed"
    assert is_finite(f.model)
    assert [row.get("refinement/silent_clients", 0) for row in f.rows()] == [0, 1]
    assert [row["clients/failed"] for row in f.rows()] == [0, 0]


def times(model: Any, by: float) -> Any:
    return {**model, "trainable": model["trainable"] * np.float32(by)}


def test_finite_weights_may_have_logits_that_are_not(tmp_path: Path) -> None:
    f = federation(tmp_path)
    refiner = f.strategy.refiner
    refiner.clear(f.strategy.evaluator.data)
    refiner.learn(times(f.model, 1e20), 1.0)
    assert refiner.logits == []
    assert refiner.metrics["refinement/silent_clients"] == 1


def test_an_average_that_overflows_is_not_refined(tmp_path: Path) -> None:
    f = federation(tmp_path)
    refiner, huge = f.strategy.refiner, times(f.model, 1e20)
    refiner.clear(f.strategy.evaluator.data)
    refiner.learn(f.model, 1.0)
    assert refiner.refine(f.model, huge, 1) is huge
    assert refiner.metrics["refinement/diverged"] == 1
    assert refiner.refined is None


@pytest.mark.parametrize("strategy", ["fedavg", "mrtf", "fedadam"])
def test_a_model_that_has_exploded_is_its_clients_own_affair(tmp_path: Path, strategy: str) -> None:
    proxy = type("Exploding", (OneExplodes,), {"by": 1e20})
    f = federation(tmp_path, proxy, strategy=strategy, **{"num-server-rounds": 3}).run()
    assert status(f)["status"] == "completed"
    assert [row["clients/failed"] for row in f.rows()] == [0, 1, 0]
    assert is_finite(f.model)
    assert np.abs(f.model["trainable"]).max() < 100


def test_a_server_step_that_overflows_ends_the_run_with_the_old_model(tmp_path: Path) -> None:
    f = federation(tmp_path, strategy="fedavgm", **{"server-lr": 1e60, "num-server-rounds": 1})
    before = {name: vector.copy() for name, vector in f.model.items()}
    f.run()
    assert status(f)["status"] == "failed"
    assert "round 1: the server's step has made NaN or infinite values" in status(f)["reason"]
    assert all(np.array_equal(f.model[name], vector) for name, vector in before.items())


# ---- the released code's running targets


def test_a_new_pool_of_the_same_size_has_no_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"strategy": "hfmds-mrtf", "transductive-set": "pool", "mrtf-variant": "released"}
    seen = []
    original = Target.remembered

    def remembered(self: Target, target: Any) -> Any:
        version = f.strategy.refiner.set_version
        seen.append((version, self.memory is None, tuple(target.shape)))
        return original(self, target)

    monkeypatch.setattr(Target, "remembered", remembered)
    f = federation(tmp_path, **keys, **{"num-server-rounds": 5})
    f.run()
    assert len({shape for _, _, shape in seen}) == 1
    assert [(version, new) for version, new, _ in seen] == [
        (2, True),
        (2, False),
        (4, True),
        (4, False),
    ]
    _, scalars = f.strategy.parts.state()
    assert scalars["refinement-set"] == 4


# ---- the refined model that nobody is sent


def test_a_refined_model_that_is_not_sent_on_is_kept(tmp_path: Path) -> None:
    f = federation(tmp_path / "kept", **{"mrtf-distribute": False}).run()
    refined = load_file(f.folder / "refined.safetensors")
    plain = load_file(f.folder / "model.safetensors")
    assert refined.keys() == plain.keys()
    f.worker.flat.load(f.strategy.refiner.refined)
    for name, tensor in f.worker.flat.named().items():
        np.testing.assert_array_equal(refined[name], tensor.numpy())
    assert any(not np.array_equal(refined[name], plain[name]) for name in plain)
    assert not (federation(tmp_path / "sent").run().folder / "refined.safetensors").exists()


# ---- synthesis


class FewSynthesise(LocalProxy):
    """Only client 0 answers to round 4's synthesis."""

    def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        if (ins.config["phase"], ins.config["round"]) == ("synthesis", 4) and self.partition:
            raise ValueError("Error: Message Unavailable")
        return super().fit(ins, timeout, group_id)


@pytest.mark.parametrize(("share", "version"), [(0.5, 2), (0.1, 4)])
def test_a_remnant_is_no_pool(tmp_path: Path, share: float, version: int) -> None:
    keys = {"strategy": "hfmds", "num-server-rounds": 5, "min-success-fraction": share}
    f = federation(tmp_path, FewSynthesise, **keys).run()
    assert status(f)["status"] == "completed"
    assert f.rows()[3]["clients/failed"] == 5
    assert f.rows()[3].get("synthesis/too_few", 0) == int(version == 2)
    assert f.strategy.pool.version == version
    assert len(f.strategy.pool.arrays["labels"]) == (48 if version == 2 else 8)


def test_a_pool_too_large_for_a_message_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 clients × 8 float32 images of 64 pixels with their labels, and the model."""
    f = federation(tmp_path / "a", strategy="hfmds")
    model = sum(vector.nbytes for vector in f.model.values())
    whole = model + 48 * (64 * 4 + 8)
    monkeypatch.setattr("fedsyn_flwr.messages.payload.MESSAGE_LIMIT", whole)
    assert status(f.run())["status"] == "completed"
    monkeypatch.setattr("fedsyn_flwr.messages.payload.MESSAGE_LIMIT", whole - 1)
    f = federation(tmp_path / "b", strategy="hfmds").run()
    assert (status(f)["status"], status(f)["rounds"]) == ("failed", 0)
    assert "over the limit" in status(f)["reason"]
    assert not any(proxy.calls for proxy in f.proxies)
    for name, keys in (("c", {"pool-max": 40}), ("d", {"synthetic-dtype": "uint8"})):
        f = federation(tmp_path / name, strategy="hfmds", **keys).run()
        assert status(f)["status"] == "completed"


def test_a_synthesis_that_never_comes_is_said(tmp_path: Path) -> None:
    def last(rounds: int) -> str:
        keys = [f"num-server-rounds={rounds}", "synthesis-every=4", f"results-dir={tmp_path}"]
        return resolve.prepare("digits-hfmds", keys).headline()[-1]

    assert last(3) == (
        "note: synthesis-every = 4, and the run has 3 rounds: no images will be made, and the "
        "clients train as in FedAvg"
    )
    assert last(4).startswith("results in")


def test_images_that_are_taken_for_digits_are_said(tmp_path: Path) -> None:
    keys = [f"data-dir={tmp_path}", f"results-dir={tmp_path}"]
    assert remarks(resolve.draft("digits-fedavg", keys).config) == [
        f"note: the images of {tmp_path} are taken for digits, with their mean and deviation; name "
        "theirs, such as dataset = mnist"
    ]
    assert not remarks(resolve.draft("digits-fedavg", [*keys, "dataset=mnist"]).config)


def test_a_results_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            UserError, match=r"results-dir .*/file cannot be written: Not a directory; c"
        ),
        claimed(tmp_path / "file" / "run"),
    ):
        pass
