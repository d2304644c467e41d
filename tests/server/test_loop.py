"""Failures, odd clients and what is written about them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, FitRes
from harness import Federation, LocalProxy
from safetensors.torch import load_file

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import from_parameters, to_parameters
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.registry import METHODS

QUICK: dict[str, Any] = {
    "strategy": "fedavg",
    "num-server-rounds": 3,
    "limit-train": 200,
    "model-width": 0.25,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 2,
    "gan-rounds": 2,
    "gan-steps": 2,
    "gan-width": 4,
}


def federation(folder: Path, clients: int = 4, proxy: type = LocalProxy, **keys: Any) -> Federation:
    return Federation(folder, clients, proxy, **{**QUICK, **keys})


def status(f: Federation) -> dict[str, Any]:
    return json.loads((f.folder / "status.json").read_text())


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


class OneFails(LocalProxy):
    """Client 2 raises, always."""

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        if self.partition == 2:
            raise RuntimeError("out of memory on purpose")
        return super().fit(ins, timeout, group_id)


class AllFail(LocalProxy):
    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        self.calls.append(dict(ins.config))
        raise RuntimeError("no one is home")


class OneSendsNaN(LocalProxy):
    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        result = super().fit(ins, timeout, group_id)
        if self.partition == 1 and ins.config["phase"] == "train":
            layout = self.worker.flat.layout
            groups = from_parameters(result.parameters, layout)
            groups["model"]["trainable"] = groups["model"]["trainable"] * np.float32("nan")
            result.parameters = to_parameters(groups, layout)
        return result


class OneSendsBadImages(LocalProxy):
    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        result = super().fit(ins, timeout, group_id)
        if self.partition == 1 and ins.config["phase"] == "synthesis":
            layout = self.worker.flat.layout
            groups = from_parameters(result.parameters, layout)
            groups["synthetic"]["labels"] = groups["synthetic"]["labels"] + 10
            result.parameters = to_parameters(groups, layout)
        return result


def test_a_completed_run_leaves_its_four_files(tmp_path: Path) -> None:
    f = federation(tmp_path).run()
    assert status(f) == {"status": "completed", "rounds": 3, "reason": ""}
    config = json.loads((f.folder / "config.json").read_text())
    assert config["config"]["num-server-rounds"] == 3
    assert config["config"]["learning-rate"] == 0.05
    assert config["seed"] == 0
    assert config["versions"]["torch"]
    assert [x["round"] for x in lines(f)] == [1, 2, 3]
    wanted = {
        "server/test_accuracy",
        "server/test_loss",
        "clients/train_loss",
        "seconds/round",
        "seconds/training",
        "seconds/evaluation",
        "bytes/down",
        "bytes/up",
        "clients/failed",
    }
    assert all(wanted <= set(x) for x in lines(f))
    saved = load_file(f.folder / "model.safetensors")
    f.strategy.flat.load(f.model)
    assert saved.keys() == f.strategy.flat.module.state_dict().keys()
    for name, tensor in f.strategy.flat.module.state_dict().items():
        assert (saved[name] == tensor).all(), name
    assert not [p for p in f.folder.iterdir() if p.name.startswith(".")]


def test_a_run_never_overwrites_another(tmp_path: Path) -> None:
    f = federation(tmp_path).run()
    before = {p.name: p.read_bytes() for p in f.folder.iterdir() if p.is_file()}
    with pytest.raises(UserError, match="already holds a run"):
        federation(tmp_path)
    assert before == {p.name: p.read_bytes() for p in f.folder.iterdir() if p.is_file()}


def test_one_failing_client_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    f = federation(tmp_path, proxy=OneFails).run()
    assert status(f)["status"] == "completed"
    assert [x["clients/failed"] for x in lines(f)] == [1, 1, 1]
    assert "client 2: out of memory on purpose" in " ".join(f.strategy.record.reasons)


def test_too_few_successes_stop_the_run_after_one_retry(tmp_path: Path) -> None:
    f = federation(tmp_path, proxy=AllFail, **{"fraction-fit": 0.5})
    initial = digest(f.model)
    f.run()
    assert status(f)["status"] == "stopped"
    assert status(f)["rounds"] == 0
    assert "no one is home" in status(f)["reason"]
    assert digest(f.model) == initial
    assert (f.folder / "model.safetensors").exists()
    calls = [sum(len(p.calls) > 0 for p in f.proxies), sum(len(p.calls) for p in f.proxies)]
    assert calls[1] == 4  # two clients, twice
    assert calls[0] > 2  # and the second time others


def test_min_success_fraction_decides(tmp_path: Path) -> None:
    keys = {"min-success-fraction": 0.8}
    assert status(federation(tmp_path, proxy=OneFails, **keys).run())["status"] == "stopped"


def test_nan_never_reaches_the_global_model(tmp_path: Path) -> None:
    f = federation(tmp_path, proxy=OneSendsNaN).run()
    assert np.isfinite(f.model["trainable"]).all()
    assert [x["clients/rejected"] for x in lines(f)] == [1, 1, 1]
    assert status(f)["status"] == "completed"


class OneSendsAnotherModel(LocalProxy):
    """Client 1 answers with a model that is too short, client 2 with none."""

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        result = super().fit(ins, timeout, group_id)
        layout = self.worker.flat.layout
        groups = from_parameters(result.parameters, layout)
        if self.partition == 1:
            groups["model"]["trainable"] = groups["model"]["trainable"][:-1]
        if self.partition == 2:
            del groups["model"]
        result.parameters = to_parameters(groups, layout)
        return result


def test_answers_without_a_fitting_model_are_rejected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    f = federation(tmp_path, proxy=OneSendsAnotherModel)
    with caplog.at_level("WARNING", logger="flwr"):
        f.run()
    assert status(f)["status"] == "completed"
    assert [x["clients/rejected"] for x in lines(f)] == [2, 2, 2]
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("failed: ")]
    assert len(said) == 2  # each distinct reason once, not once per round
    assert "client 1: its model: trainable is float32" in said[0]
    assert "client 2: its answer holds no model" in said[1]


def test_bad_images_are_refused_and_the_rest_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    f = federation(tmp_path, proxy=OneSendsBadImages, strategy="hfmds")
    with caplog.at_level("WARNING", logger="flwr"):
        f.run()
    assert status(f)["status"] == "completed"
    assert lines(f)[1]["clients/rejected"] == 1
    assert "client 1: its synthetic images were refused" in caplog.text
    assert set(f.strategy.pool.arrays["labels"]) <= set(range(10))
    assert len(f.strategy.pool.arrays["labels"]) > 0


@pytest.mark.parametrize("norm", ["bn", "gn"])
@pytest.mark.parametrize("strategy", METHODS)
def test_clients_of_0_1_2_and_one_more_than_a_batch(
    tmp_path: Path, strategy: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = np.split(np.arange(200), [0, 1, 3, 36])  # sizes 0, 1, 2, 33, 164
    monkeypatch.setattr("fedsyn_flwr.build.partitions", lambda *_: parts)
    keys = {"strategy": strategy, "norm": norm, "weighting": "uniform"}
    f = federation(tmp_path, clients=5, **keys).run()
    assert status(f)["status"] == "completed", status(f)
    assert [x["clients/failed"] for x in lines(f)] == [0, 0, 0]
    assert np.isfinite(f.model["buffers"]).all()


def test_no_client_with_samples_skips_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = [np.arange(0), np.arange(0)]
    monkeypatch.setattr("fedsyn_flwr.build.partitions", lambda *_: empty)
    f = federation(tmp_path, clients=2)
    initial = digest(f.model)
    f.run()
    assert status(f)["status"] == "completed"
    assert digest(f.model) == initial


def test_a_federation_of_another_size_is_one_clear_line(tmp_path: Path) -> None:
    f = federation(tmp_path, clients=2)
    object.__setattr__(f.strategy.federation, "num_clients", 20)
    object.__setattr__(f.strategy.federation, "node_timeout", 0.3)
    f.run()
    assert status(f)["status"] == "failed"
    assert "num-clients = 20, but the federation has 2 SuperNodes" in status(f)["reason"]


@pytest.mark.parametrize(("machines", "folder", "said"), [(2, "", 1), (1, "", 0), (2, "shared", 0)])
def test_a_cluster_without_a_shared_state_dir_is_warned_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    machines: int,
    folder: str,
    said: int,
) -> None:
    monkeypatch.setattr("fedsyn_flwr.server.loop.machines", lambda: machines)
    monkeypatch.setenv("FEDSYN_STATE_DIR", str(tmp_path / "state"))
    shared = str(tmp_path / folder) if folder else ""
    f = federation(tmp_path, clients=2, **{"num-server-rounds": 1, "state-dir": shared})
    with caplog.at_level("WARNING", logger="flwr"):
        f.run()
    assert caplog.text.count("2 machines and no state-dir") == said


def test_crash_of_the_server_is_a_failed_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = federation(tmp_path)
    monkeypatch.setattr(f.strategy, "finalise", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        f.server.fit(3, None)
    assert status(f)["status"] == "failed"
    assert "ZeroDivisionError" in status(f)["reason"]


def test_prototypes_survive_between_rounds_and_follow_the_momentum(tmp_path: Path) -> None:
    """z̄ after round 2 = (1-λ)·mean of round 2 + λ·z̄ of round 1, from the stored files."""
    import torch

    from clients.hfmds import Prototypes

    f = federation(tmp_path, clients=2, strategy="hfmds", **{"num-server-rounds": 1}).run()
    store = f.worker.state(f.strategy.codec.run).client(0)
    first = store.load(1)
    labels = f.worker.data.y(f.worker.partitions[0])
    assert first["known"].tolist() == [bool((labels == c).any()) for c in range(10)]
    p = Prototypes(torch.from_numpy(first["mean"]), torch.from_numpy(first["known"]))
    z, y = torch.ones(4, p.mean.shape[1]), torch.tensor([0, 0, 1, 1])
    z[1] = 3
    p.known[:] = torch.tensor([True, False] + [False] * 8)
    p.mean[0] = 10
    p.observe(z, y)
    p.update(0.25)
    assert p.mean[0].unique().tolist() == [0.75 * 2 + 0.25 * 10]
    assert p.mean[1].unique().tolist() == [1.0]  # a first prototype is the mean itself
    assert p.known.tolist() == [True, True] + [False] * 8


def test_prototypes_are_the_means_seen_in_training(tmp_path: Path) -> None:
    """With a vanishing learning rate the local model is w_t, so z̄_c is known in closed form."""
    import torch

    keys = {"strategy": "hfmds", "num-server-rounds": 1, "learning-rate": 1e-12}
    f = federation(tmp_path, clients=2, **keys).run()
    kept = f.worker.state(f.strategy.codec.run).client(1).load(1)
    model = f.strategy.flat.module.eval()
    indices = f.worker.partitions[1]
    with torch.no_grad():
        z = model.forward_features(f.worker.data.x(indices))
    y = f.worker.data.y(indices)
    for c in range(10):
        if (y == c).any():
            np.testing.assert_allclose(kept["mean"][c], z[y == c].mean(0).numpy(), atol=1e-5)
        else:
            assert not kept["known"][c]
