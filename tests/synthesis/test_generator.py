"""FedGen's generator: its formulas by hand, one step, what it learns."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsyn_flwr.models import build_model
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

LONG = {"iterations": 300, "batch_size": 32, "weight_decay": 0}
LN3 = math.log(3)


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
