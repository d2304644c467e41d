"""FedMix's averages and losses: by hand, and the second order against other ways to compute it."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedsyn_flwr.models import build_model
from fedsyn_flwr.synthesis import mixing

LAM = 0.2


# ---- averages


@pytest.mark.parametrize(
    ("n", "size", "count", "each"),
    [(10, 5, 2, 5), (14, 5, 2, 5), (5, 5, 1, 5), (3, 5, 1, 3), (1, 5, 1, 1), (0, 5, 0, 0)],
)
def test_groups_are_full_and_share_no_sample(n: int, size: int, count: int, each: int) -> None:
    groups = mixing.mean_groups(n, size, torch.Generator().manual_seed(0))
    assert groups.shape == (count, each)
    assert mixing.average_count(n, size) == count
    assert len(set(groups.flatten().tolist())) == count * each


def test_mean_label_by_hand() -> None:
    assert mixing.mean_label(torch.tensor([2, 0, 2, 2]), 4).tolist() == [0.25, 0.0, 0.75, 0.0]


# ---- the loss


def samples(norm: str, dtype: torch.dtype = torch.float64, name: str = "cnn") -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(3)
    model = build_model(name, in_shape=(1, 8, 8), num_classes=10, norm=norm, width=0.25, seed=0).to(
        dtype
    )
    x, mean_x = torch.randn(2, 4, 1, 8, 8, generator=g, dtype=dtype)
    y = torch.randint(10, (4,), generator=g)
    return model, x, y, mean_x, torch.rand(4, 10, generator=g, dtype=dtype).softmax(dim=1)


def gradient_of(model: Any, value: torch.Tensor) -> torch.Tensor:
    grads = torch.autograd.grad(value, list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


def per_sample(model: Any, x: Any, y: Any, mean_x: Any, mean_y: Any) -> torch.Tensor:
    """The formula, a sample at a time: its own derivative by all that it depends on."""
    scaled = ((1 - LAM) * x).requires_grad_()
    logits = model(scaled)
    total = torch.zeros((), dtype=x.dtype)
    for b in range(len(y)):
        log_p = logits[b] - logits[b].exp().sum().log()
        own, theirs = -log_p[y[b]], -(mean_y[b] * log_p).sum()
        (derivative,) = torch.autograd.grad(own, scaled, create_graph=True)
        if not model.training or "BatchNorm" not in str(model):
            assert (derivative[torch.arange(len(y)) != b] == 0).all()  # its own image only
        total = total + (1 - LAM) * own + LAM * theirs + LAM * (derivative * mean_x).sum()
    return total / len(y)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "norm"),
    [("cnn", "bn"), ("cnn", "gn"), ("cnn", "none")]
    + [(name, "bn") for name in ("mlp", "cnn-gap", "lenet", "resnet18")],
)
def test_loss_and_gradient_equal_a_loop_over_samples(name: str, norm: str, training: bool) -> None:
    model, *batch = samples(norm, name=name)
    model.train(training)
    loop = per_sample(model, *batch)
    found = mixing.fedmix(model, *batch, LAM).objective.mean()
    assert found.item() == pytest.approx(loop.item(), abs=1e-6)
    expected, got = gradient_of(model, loop), gradient_of(model, found)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_derivative_equals_forward_mode(norm: str) -> None:
    """λ·⟨∂CE/∂x', x̄⟩, summed over the batch, is the derivative of ΣCE along x̄: torch.func.jvp."""
    model, x, y, mean_x, mean_y = samples(norm)
    model.train()
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    weights = dict(model.named_parameters())

    def cross_entropies(point: torch.Tensor) -> torch.Tensor:
        fresh = {k: v.clone() for k, v in buffers.items()}
        logits = torch.func.functional_call(model, {**weights, **fresh}, (point,))
        return F.cross_entropy(logits, y, reduction="none")

    own, slope = torch.func.jvp(cross_entropies, ((1 - LAM) * x,), (mean_x,))
    found = mixing.fedmix(model, x, y, mean_x, mean_y, LAM)
    torch.testing.assert_close(found.cross_entropy, own, rtol=0, atol=1e-9)
    logits = model((1 - LAM) * x)
    theirs = F.cross_entropy(logits, mean_y, reduction="none")
    expected = ((1 - LAM) * own + LAM * theirs + LAM * slope).sum()
    assert found.objective.sum().item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_term_does_not_shrink_with_the_batch() -> None:
    """A sample's objective is the same whatever else is in the batch."""
    model, *batch = samples("gn")
    whole = mixing.fedmix(model, *batch, LAM).objective
    alone = torch.cat(
        [mixing.fedmix(model, *(v[i : i + 1] for v in batch), LAM).objective for i in range(4)]
    )
    torch.testing.assert_close(whole, alone, rtol=1e-9, atol=1e-9)


def test_fedmix_by_hand() -> None:
    """f(x) = (x, -x), x = 1, y = 0, x̄ = 2, ȳ = (0, 1), λ = ½: at x' = ½ CE = log(1 + e⁻¹)."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.flatten(1), -x.flatten(1)], dim=1)

    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    shares = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    found = mixing.fedmix(model, one, torch.tensor([0]), 2 * one, shares, 0.5)
    own = np.log1p(np.exp(-1))
    slope = -2 / (1 + np.e)  # dCE/dx' = -2σ(-2x')
    assert found.objective.item() == pytest.approx(0.5 * own + 0.5 * (own + 1) + 0.5 * slope * 2)
    assert found.cross_entropy.item() == pytest.approx(own)
    naive = mixing.naivemix(model, one, torch.tensor([0]), 2 * one, shares, 0.5)
    far = np.log1p(np.exp(-3))  # at x̃ = ½·1 + ½·2
    assert naive.objective.item() == pytest.approx(0.5 * far + 0.5 * (far + 3))


def test_lambda_zero_is_the_cross_entropy_to_the_bit() -> None:
    for loss in (mixing.fedmix, mixing.naivemix):
        model, x, y, mean_x, mean_y = samples("gn", torch.float32)
        plain = F.cross_entropy(model(x), y, reduction="none")
        assert torch.equal(loss(model, x, y, mean_x, mean_y, 0.0).objective, plain)


def test_naivemix_differs_from_fedmix_in_second_order() -> None:
    """Without ReLU's kinks in the way a tenth of λ leaves a hundredth of the difference."""
    torch.manual_seed(0)
    _, x, y, mean_x, _ = samples("gn")
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.Tanh(), torch.nn.Linear(9, 10)
    ).double()
    mean_y = F.one_hot(y, 10).double()  # equal labels: the derivative of ȳ's term is dropped, too
    gaps = []
    for lam in (1e-2, 1e-3):
        a, b = (
            loss(model, x, y, mean_x, mean_y, lam).objective.sum()
            for loss in (mixing.fedmix, mixing.naivemix)
        )
        gaps.append(abs((a - b).item()))
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.1)


class Saved:
    """A tensor that a graph keeps for its backward pass, counted while it is kept."""

    alive = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        Saved.alive += 1

    def __del__(self) -> None:
        Saved.alive -= 1


def test_nothing_of_a_step_stays() -> None:
    """The graph through the derivative goes with the step, without the garbage collector."""
    model, *batch = samples("bn", torch.float32)
    model.train()
    gc.disable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            for _ in range(3):
                objective = mixing.fedmix(model, *batch, LAM).objective.mean()
                kept = Saved.alive
                objective.backward()
                del objective
                assert kept > 0
                assert Saved.alive == 0
    finally:
        gc.enable()
