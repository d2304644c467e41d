"""FedGen in a federation: who teaches what, what travels, its limits."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation, LocalProxy
from PIL import Image
from torch.nn import functional as F

from clients.fedgen import FedGenClient
from fedsyn_flwr.client.numpy_client import Step
from fedsyn_flwr.client.training import Batch
from fedsyn_flwr.messages.instruction import Instruction
from fedsyn_flwr.messages.payload import from_parameters, to_parameters
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.synthesis.generator import (
    Teaching,
)

QUICK: dict[str, Any] = {
    "strategy": "fedgen",
    "num-server-rounds": 3,
    "limit-train": 200,
    "model-width": 0.25,
    "fedgen-iterations": 5,
    "fedgen-hidden": 8,
    "fedgen-noise": 4,
}
OFF = {"fedgen-alpha": 0, "fedgen-beta": 0}
LN3 = math.log(3)


def federation(folder: Path, clients: int = 4, proxy: type = LocalProxy, **keys: Any) -> Federation:
    return Federation(folder, clients, proxy, **{**QUICK, **keys})


def final(folder: Path, **keys: Any) -> str:
    return digest(federation(folder, **keys).run().model)


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


# ---- limits


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_weights_zero_are_fedavg(tmp_path: Path, norm: str) -> None:
    keys = {"norm": norm, "fraction-fit": 0.6}
    fedavg = final(tmp_path / "a", **{**keys, "strategy": "fedavg"})
    assert final(tmp_path / "b", **keys, **OFF) == fedavg
    assert final(tmp_path / "c", **keys) != fedavg


def test_round_one_is_fedavg(tmp_path: Path) -> None:
    for rounds, equal in ((1, True), (2, False)):
        keys = {"num-server-rounds": rounds}
        fedavg = final(tmp_path / f"a{rounds}", strategy="fedavg", **keys)
        assert (final(tmp_path / f"b{rounds}", **keys) == fedavg) is equal


def test_weights_decay_from_round_to_round() -> None:
    from fedsyn_flwr import config

    params = config.load(config.merged({"strategy": "fedgen", "fedgen-beta": 4})).params
    assert params.weights(1) == (10, 4)
    assert params.weights(3) == pytest.approx((10 * 0.98**2, 4 * 0.98**2))


# ---- the client


def client(f: Federation, partition: int = 0, number: int = 3) -> FedGenClient:
    """A client at the beginning of a round, with what the server would send it."""
    found = FedGenClient(f.worker, partition)
    found.round = Instruction(f.strategy.codec.run, number, "train")
    f.worker.flat.load(f.model)
    found.begin_round(f.strategy.outgoing("train", partition))
    return found


def test_the_objective_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generated batches through the classifier that is being trained."""
    f = federation(tmp_path, **{"fedgen-beta": 5.0}).run()
    found = client(f)
    model, d = found.flat.module, found.flat.module.feature_dim
    made = {n: torch.randn(n, d, generator=torch.Generator().manual_seed(n)) for n in (4, 6)}
    monkeypatch.setattr(found, "features", lambda y: made[len(y)])
    monkeypatch.setattr(found, "draw_labels", lambda: torch.tensor([0, 1, 2, 3, 4, 5]))
    z, y = torch.randn(4, d, generator=torch.Generator().manual_seed(0)), torch.tensor([7, 7, 8, 9])
    found.taught = torch.arange(10) < 9  # so the last sample has no guidance
    logits = model.classifier(z)
    step = Step(Batch(z, y), z, z, logits, F.cross_entropy(logits, y))

    def probabilities(features: torch.Tensor) -> torch.Tensor:
        e = (features @ model.classifier.weight.T + model.classifier.bias).exp()
        return e / e.sum(dim=1, keepdim=True)

    ce = -probabilities(z)[range(4), y].log().mean()
    generated = -probabilities(made[6])[range(6), range(6)].log().mean()
    p, q = probabilities(made[4]), probabilities(z)
    kl = (p * (p / q).log()).sum(dim=1)[:3].sum() / 4
    expected = ce + 0.98**2 * (10 * generated + 5 * kl)
    assert found.objective(step).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_received_generator_is_frozen(tmp_path: Path) -> None:
    f = federation(tmp_path).run()
    found, groups = client(f), {"model": f.model, **f.strategy.outgoing("train", 0)}
    y, eps = torch.tensor([3]), torch.ones(1, 4)
    expected = f.strategy.teaching.flat.module.eval()(y, eps)
    found.train(groups)
    assert not found.source.training
    assert not any(p.requires_grad for p in found.source.parameters())
    assert torch.equal(found.source(y, eps), expected)


def test_as_many_labels_as_a_full_batch_on_any_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = np.split(np.arange(200), [1])
    monkeypatch.setattr("fedsyn_flwr.build.partitions", lambda *_: parts)
    f = federation(tmp_path, clients=2).run()
    assert len(client(f).indices) == 1
    assert len(client(f).draw_labels()) == 32
    assert [x["clients/failed"] for x in lines(f)] == [0] * 3


# ---- the server


def test_generator_and_counts_travel_and_are_counted(tmp_path: Path) -> None:
    plain = lines(federation(tmp_path / "a", strategy="fedavg").run())
    f = federation(tmp_path / "b").run()
    size = sum(array.nbytes for array in f.strategy.generator.values())
    for t, (ours, theirs) in enumerate(zip(lines(f), plain, strict=True)):
        down = 4 * size if t else 0  # nothing is taught before round 1
        assert ours["bytes/down"] - theirs["bytes/down"] == pytest.approx(down, abs=4 * 700)
        assert (ours["bytes/down"] > theirs["bytes/down"]) is bool(t)
        assert ours["bytes/up"] - theirs["bytes/up"] == pytest.approx(4 * 80, abs=4 * 200)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_of_a_reply_only_the_classifier_is_kept(tmp_path: Path, norm: str) -> None:
    f = federation(tmp_path, norm=norm, **{"num-server-rounds": 1}).run()
    assert len(f.strategy.heads) == 4
    for k, head in enumerate(f.strategy.heads):
        assert {n: tuple(v.shape) for n, v in head.items()} == {"weight": (10, 32), "bias": (10,)}
        own = np.bincount(f.worker.data.y(f.worker.partitions[k]), minlength=10)
        assert f.strategy.counts[k].tolist() == own.tolist()
        assert head["weight"].untyped_storage().nbytes() == 4 * 320  # no view of the whole vector


def test_teachers_are_the_clients_of_this_round(tmp_path: Path) -> None:
    """Each with its own classifier, not the average."""
    f = federation(tmp_path, clients=8, **{"fraction-fit": 0.5}).run()
    heads = [h["weight"] for h in f.strategy.heads]
    assert len(heads) == 4
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    f.strategy.begin_attempt()
    assert f.strategy.heads == f.strategy.counts == []


def test_classes_that_no_teacher_had_are_not_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of two clients sampled each time, the other's classes are unknown at first."""

    def parts(_: Any, train: Any, __: int) -> list[np.ndarray]:
        return [np.flatnonzero(np.isin(train.labels, own)) for own in ([0, 1], [2])]

    monkeypatch.setattr("fedsyn_flwr.build.partitions", parts)
    f = federation(tmp_path, clients=2, **{"fraction-fit": 0.5, "num-server-rounds": 1}).run()
    sampled = next(k for k, proxy in enumerate(f.proxies) if proxy.calls)
    known = ({0, 1}, {2})[sampled]
    assert set(np.flatnonzero(f.strategy.generator["classes"])) == known
    other = client(f, 1 - sampled, number=2)
    assert set(other.draw_labels().tolist()) == known
    assert not other.taught[other.labels].any()


class BadCounts(LocalProxy):
    """Client 1 sends no counts, client 2 negative ones, client 3 those of eleven classes."""

    def fit(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        result = super().fit(ins, timeout, group_id)
        layout = self.worker.flat.layout
        groups = from_parameters(result.parameters, layout)
        counts = groups["labels"]["counts"]
        if self.partition == 1:
            del groups["labels"]
        elif self.partition:
            groups["labels"]["counts"] = -counts if self.partition == 2 else np.append(counts, 1)
        result.parameters = to_parameters(groups, layout)
        return result


def test_answers_without_sound_counts_are_rejected(tmp_path: Path) -> None:
    keys = {"num-server-rounds": 1, "min-success-fraction": 0}
    f = federation(tmp_path, proxy=BadCounts, **keys).run()
    assert lines(f)[0]["clients/rejected"] == 3
    assert f.strategy.record.reasons[0] == "client 1: its answer holds no labels"
    assert len(f.strategy.heads) == 1


def test_a_diverged_generator_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = federation(tmp_path, **{"num-server-rounds": 1}).run()
    before = digest(f.strategy.generator)
    original = Teaching.round

    def diverging(self: Teaching, *rest: Any) -> Any:
        taught = original(self, *rest)
        self.flat.trainable[0] = float("nan")
        return taught

    monkeypatch.setattr(Teaching, "round", diverging)
    f.strategy.after_round(2)
    assert digest(f.strategy.generator) == f.strategy.teaching.flat.digest() == before
    assert f.strategy.record.metrics["generator/diverged"] == 1


def test_the_server_teaches_with_one_thread_whatever_its_machine_has(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"num-server-rounds": 1}).run()
    seen, step = [], f.strategy.teaching.step

    def watched(*args: Any) -> Any:
        seen.append(torch.get_num_threads())
        return step(*args)

    f.strategy.teaching.step = watched
    torch.set_num_threads(2)
    f.strategy.after_round(2)
    assert (set(seen), torch.get_num_threads()) == ({1}, 2)


# ---- other models


def test_a_head_with_hidden_layers_and_dropout(tmp_path: Path) -> None:
    """VGG8 needs images of 16 pixels: a folder of random ones."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        path = tmp_path / "images" / ("train", "test")[i % 2] / str(i // 2 % 10) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    keys = {
        "dataset": "cifar10",
        "data-dir": str(tmp_path / "images"),
        "model": "vgg8",
        "model-width": 0.05,
        "limit-train": 0,
        "num-server-rounds": 2,
        "norm": "bn",
    }
    f = federation(tmp_path, clients=2, **keys).run()
    assert json.loads((f.folder / "status.json").read_text())["status"] == "completed"
    assert set(f.strategy.heads[0]) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert 0 < lines(f)[1]["generator/teacher_loss"] < 100
    assert final(tmp_path / "again", clients=2, **keys) == digest(f.model)


@pytest.mark.parametrize("keys", [{"model": "mlp"}, {"model": "cnn-gap"}, {"projection-dim": 6}])
def test_other_models(tmp_path: Path, keys: dict[str, Any]) -> None:
    f = federation(tmp_path, **keys, **{"num-server-rounds": 2}).run()
    assert [x["clients/failed"] for x in lines(f)] == [0, 0]
    d = f.strategy.flat.module.feature_dim
    assert f.strategy.teaching.flat.module(torch.tensor([1, 2]), torch.zeros(2, 4)).shape == (2, d)
    assert f.strategy.heads[0]["weight"].shape == (10, d)


def test_it_trains(tmp_path: Path) -> None:
    """With the conf's learning rate; and the generator learns what its teachers teach."""
    keys = {"learning-rate": 0.005, "num-server-rounds": 20, "limit-train": 0, "model-width": 0.5}
    full = {"fedgen-iterations": 50, "fedgen-hidden": 256, "fedgen-noise": 32, "evaluate-every": 5}
    found = lines(federation(tmp_path, clients=10, **keys, **full).run())
    assert found[-1]["server/test_accuracy"] > 0.75
    assert found[-1]["generator/teacher_loss"] < 0.2 < found[1]["generator/teacher_loss"]
