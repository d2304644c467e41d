"""FedGen: its formulas by hand, the generator's training, who teaches what, its limits."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Federation, LocalProxy
from PIL import Image
from torch import nn
from torch.nn import functional as F

from clients.base import Round, Step
from clients.fedgen import FedGenClient
from fedsyn_flwr.flat import digest
from fedsyn_flwr.models import build_model
from fedsyn_flwr.payload import from_parameters, to_parameters
from fedsyn_flwr.synthesis import generator as module
from fedsyn_flwr.synthesis.generator import (
    Teaching,
    TeachingSettings,
    all_heads,
    build_generator,
    diversity,
    draw,
    guidance,
    teacher_loss,
    teacher_weights,
)
from fedsyn_flwr.training import Batch

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
LONG = {"iterations": 300, "batch_size": 32, "weight_decay": 0}
LN3 = math.log(3)


def federation(folder: Path, clients: int = 4, proxy: type = LocalProxy, **keys: Any) -> Federation:
    return Federation(folder, clients, proxy, **{**QUICK, **keys})


def final(folder: Path, **keys: Any) -> str:
    return digest(federation(folder, **keys).run().model)


def lines(f: Federation) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (f.folder / "metrics.jsonl").read_text().splitlines()]


def teaching(**keys: Any) -> Teaching:
    """Three classes, two numbers of noise, five hidden units, four features."""
    flat = build_generator(3, 2, 5, 4, seed=1, device=torch.device("cpu"))
    plain = {"iterations": 4, "batch_size": 6, "lr": 0.01, "weight_decay": 0.1, "diversity": 2.0}
    return Teaching(flat, TeachingSettings(**{**plain, **keys}))


def linear_heads(count: int) -> tuple[nn.Linear, list[dict[str, torch.Tensor]]]:
    """Linear classifiers of four features into three classes, and one to say how they work."""
    heads = []
    for seed in range(count):
        g = torch.Generator().manual_seed(seed)
        heads.append({"weight": torch.randn(3, 4, generator=g), "bias": torch.zeros(3)})
    return nn.Linear(4, 3), heads


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- the formulas by hand


def test_weights_are_shares_of_a_class() -> None:
    weights = teacher_weights(torch.tensor([[3, 0, 2], [1, 0, 2]]))
    assert weights.tolist() == [[0.75, 0.0, 0.5], [0.25, 0.0, 0.5]]


def test_teacher_loss_by_hand() -> None:
    """Teacher 0 gives (3/4, 1/4), teacher 1 (1/2, 1/2), for both samples."""
    logits = torch.tensor([[[LN3, 0.0]] * 2, [[0.0, 0.0]] * 2])
    weights = torch.tensor([[0.75, 0.0], [0.25, 1.0]])
    loss = teacher_loss(logits, torch.tensor([0, 1]), weights)
    first = 0.75 * math.log(4 / 3) + 0.25 * math.log(2)
    assert loss.item() == pytest.approx((first + math.log(2)) / 2, rel=1e-6)


def test_diversity_by_hand() -> None:
    """d_ε = (2² + 0)/2 = 2 and d_z = (3 + 1)/2 = 2 for the two ordered pairs of four."""
    eps, z = torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([[0.0, 1.0], [3.0, 2.0]])
    assert diversity(eps, z).item() == pytest.approx(math.exp(-2), rel=1e-6)
    assert diversity(eps, torch.ones(2, 2)).item() == 1


def test_guidance_by_hand() -> None:
    """KL((3/4, 1/4) ‖ (1/2, 1/2)); the second sample's class was never taught."""
    target = torch.tensor([[LN3, 0.0], [50.0, 0.0]], requires_grad=True)
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = guidance(logits, target, torch.tensor([True, False]))
    assert loss.item() == pytest.approx((0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2, rel=1e-6)
    loss.backward()
    assert target.grad is None
    np.testing.assert_allclose(logits.grad, [[-0.125, 0.125], [0, 0]], atol=1e-7)  # (σ - p)/2


def test_labels_are_drawn_uniformly_from_the_classes_given() -> None:
    drawn = draw(torch.tensor([1, 4]), 4000, rng())
    counts = torch.bincount(drawn, minlength=5)
    assert counts[[0, 2, 3]].sum() == 0
    assert abs(counts[1] - 2000) < 150


@pytest.mark.parametrize("name", ["cnn", "vgg8", "resnet18"])
def test_all_heads_are_each_models_own_classifier(name: str) -> None:
    """Hidden layers and dropout included; eval mode."""
    shape = (1, 16, 16)
    make = [build_model(name, in_shape=shape, num_classes=3, width=0.25, seed=s) for s in range(3)]
    heads = [dict(m.classifier.state_dict()) for m in make]
    z = torch.randn(5, make[0].feature_dim, generator=rng())
    together = all_heads(make[2].classifier, heads)(z)
    with torch.no_grad():
        apart = torch.stack([m.eval().classifier(z) for m in make])
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-6)


# ---- the generator's training


def test_one_step_by_an_independent_formula() -> None:
    """A loop over teachers and samples, torch's own layers, Adam's first step -η·g/(|g| + ε)."""
    t, (classifier, heads) = teaching(), linear_heads(2)
    weights = teacher_weights(torch.tensor([[1, 2, 0], [3, 2, 0]]))
    y, eps = torch.tensor([0, 1, 1]), torch.randn(3, 2, generator=rng())
    w = {n: v.detach().clone().requires_grad_() for n, v in t.flat.module.named_parameters()}

    hidden = torch.cat([torch.eye(3)[y], eps], dim=1) @ w["layers.0.weight"].T
    centred = hidden - hidden.mean(0)
    scaled = centred / (centred.square().mean(0) + 1e-5).sqrt()
    active = (scaled * w["layers.1.weight"] + w["layers.1.bias"]).clamp(min=0)
    z = active @ w["layers.3.weight"].T + w["layers.3.bias"]
    teachers, far = torch.zeros(()), torch.zeros(())
    for i in range(3):
        for k, head in enumerate(heads):
            p = (z[i] @ head["weight"].T + head["bias"]).softmax(0)
            teachers = teachers - weights[k, y[i]] * p[y[i]].log() / 3
        for j in range(3):
            d_eps = ((eps[i] - eps[j]) ** 2).sum() / 2
            far = far + d_eps * (z[i] - z[j]).abs().sum() / 4 / 9
    (teachers + 2.0 * (-far).exp()).backward()

    t.flat.module.train()
    terms = t.step(all_heads(classifier, heads), weights, y, eps)
    np.testing.assert_allclose(terms, [teachers.item(), (-far).exp().item()], rtol=1e-5)
    for name, parameter in t.flat.module.named_parameters():
        g = w[name].grad + 0.1 * w[name].detach()
        expected = w[name].detach() - 0.01 * g / (g.abs() + 1e-8)
        sure = g.abs() > 1e-5  # elsewhere rounding decides the sign
        torch.testing.assert_close(parameter[sure], expected[sure], rtol=0, atol=1e-5)


def test_it_learns_to_be_classified_as_asked() -> None:
    t, (classifier, heads) = teaching(**LONG), linear_heads(1)
    logits, y, eps = all_heads(classifier, heads), torch.arange(3).repeat(40), torch.ones(120, 2)
    eps = eps.normal_(generator=rng(5))

    def made() -> torch.Tensor:
        with torch.no_grad():
            return t.flat.module.eval()(y, eps)

    assert (logits(made())[0].argmax(1) == y).float().mean() < 0.7
    taught = t.round(logits, torch.ones(1, 3), rng())
    z = made()
    assert (logits(z)[0].argmax(1) == y).float().mean() > 0.95
    assert taught.teacher_loss < math.log(3)
    assert z[y == 0].std(0).mean() > 0.05  # noise still matters


def test_a_teacher_without_samples_of_a_class_has_no_say_in_it() -> None:
    """All classes drawn are the first teacher's: whatever the second one thinks, the same bits."""
    weights = teacher_weights(torch.tensor([[5, 1, 0], [0, 0, 0]]))
    bits = []
    for second in (1, 2):
        classifier, heads = linear_heads(3)
        t = teaching()
        t.round(all_heads(classifier, [heads[0], heads[second]]), weights, rng())
        bits.append(t.flat.digest())
    assert bits[0] == bits[1]
    assert t.classes.tolist() == [True, True, False]


def test_a_class_without_a_teacher_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def listening(classes: torch.Tensor, *rest: Any) -> torch.Tensor:
        drawn = draw(classes, *rest)
        asked.extend(drawn.tolist())
        return drawn

    monkeypatch.setattr(module, "draw", listening)
    classifier, heads = linear_heads(2)
    weights = teacher_weights(torch.tensor([[5, 0, 0], [0, 0, 7]]))
    teaching().round(all_heads(classifier, heads), weights, rng())
    assert set(asked) == {0, 2}


def test_restored_teaching_goes_on_to_the_same_bits() -> None:
    classifier, heads = linear_heads(2)
    logits, weights = all_heads(classifier, heads), torch.full((2, 3), 0.5)
    t, again = teaching(), teaching()
    t.round(logits, weights, rng(1))
    again.restore({name: np.ascontiguousarray(v) for name, v in t.state().items()})  # as on disk
    for each in (t, again):
        each.round(logits, weights, rng(2))
    assert t.flat.digest() == again.flat.digest()
    assert again.classes.all()
    without = teaching()
    without.restore(t.group())
    assert without.flat.digest() == t.flat.digest()
    for each in (t, without):
        each.round(logits, weights, rng(3))
    assert without.flat.digest() != t.flat.digest()  # so Adam's moments count


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
    found.round = Round(f.strategy.run, number, "train", 0, 0)
    f.worker.flat.load(f.model)
    found.begin_round(f.strategy.outgoing(partition))
    return found


def test_the_objective_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generated batches through the classifier that is being trained."""
    f = federation(tmp_path, **{"fedgen-beta": 5.0}).run()
    found = client(f)
    model, d = found.flat.module, found.flat.module.feature_dim
    made = {n: torch.randn(n, d, generator=rng(n)) for n in (4, 6)}
    monkeypatch.setattr(found, "features", lambda y: made[len(y)])
    monkeypatch.setattr(found, "draw_labels", lambda: torch.tensor([0, 1, 2, 3, 4, 5]))
    z, y = torch.randn(4, d, generator=rng()), torch.tensor([7, 7, 8, 9])
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
    found, groups = client(f), {"model": f.model, **f.strategy.outgoing(0)}
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
    monkeypatch.setattr("fedsyn_flwr.assembly.partitions", lambda *_: parts)
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
    f.strategy.clear()
    assert f.strategy.heads == f.strategy.counts == []


def test_classes_that_no_teacher_had_are_not_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of two clients sampled each time, the other's classes are unknown at first."""

    def parts(_: Any, train: Any, __: int) -> list[np.ndarray]:
        return [np.flatnonzero(np.isin(train.labels, own)) for own in ([0, 1], [2])]

    monkeypatch.setattr("fedsyn_flwr.assembly.partitions", parts)
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
    assert f.strategy.reasons[0] == "client 1: its label counts are missing"
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
    f.strategy.teach(2)
    assert digest(f.strategy.generator) == f.strategy.teaching.flat.digest() == before
    assert f.strategy.metrics["generator/diverged"] == 1


def test_the_server_teaches_with_one_thread_whatever_its_machine_has(tmp_path: Path) -> None:
    f = federation(tmp_path, **{"num-server-rounds": 1}).run()
    seen, step = [], f.strategy.teaching.step

    def watched(*args: Any) -> Any:
        seen.append(torch.get_num_threads())
        return step(*args)

    f.strategy.teaching.step = watched
    torch.set_num_threads(2)
    f.strategy.teach(2)
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
