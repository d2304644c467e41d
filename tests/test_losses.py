"""Loss terms against numbers worked out by hand, NumPy and finite differences."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedsyn_flwr import losses
from fedsyn_flwr.models import build_model
from fedsyn_flwr.synthesis import inversion


def test_l1_distribution_by_hand() -> None:
    v = torch.tensor([[1.0, 3.0, -2.0], [-1.0, -1.0, 0.0]])
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(losses.l1_distribution(v), expected)


def test_kl_by_hand() -> None:
    p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    by_hand = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert losses.kl_divergence(p, q).item() == pytest.approx(by_hand, abs=1e-6)


def test_kl_of_equal_distributions_is_zero_even_with_zeros() -> None:
    p = torch.tensor([[0.0, 1.0, 0.0]])
    assert losses.kl_divergence(p, p).item() == 0.0


def test_hard_features_by_hand() -> None:
    z, mean = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 3.0]])
    # (1 + μ) z - μ z̄ with μ = 0.5
    expected = torch.tensor([[2.5, 0.0]])
    torch.testing.assert_close(losses.hard_features(z, mean, 0.5), expected)


def test_mu_zero_leaves_the_bits_alone() -> None:
    z, mean = torch.randn(5, 7), torch.randn(5, 7)
    assert torch.equal(losses.hard_features(z, mean, 0.0), z)


def test_cam_of_a_linear_head_is_its_weight_row() -> None:
    head, z, y = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    assert torch.equal(losses.class_score_gradient(head, z, y), head.weight[y])
    by_autograd = losses.class_score_gradient(nn.Sequential(head), z, y)
    torch.testing.assert_close(by_autograd, head.weight[y])


def test_cam_of_an_mlp_head_equals_the_chain_rule() -> None:
    head = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    z, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
    w1, b1, w2 = head[0].weight, head[0].bias, head[2].weight
    slope = 1 - torch.tanh(z @ w1.T + b1) ** 2
    expected = (w2[y] * slope) @ w1
    torch.testing.assert_close(losses.class_score_gradient(head, z, y), expected)


def test_cam_lets_second_derivatives_through() -> None:
    head = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    z = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1])
    assert torch.autograd.gradcheck(lambda z: losses.class_score_gradient(head, z, y), (z,))


def test_priors_by_hand() -> None:
    x = torch.tensor([[[[0.0, 1.0], [3.0, 3.0]]]])
    # rows differ by 3 and 2, columns by 1 and 0
    assert losses.total_variation(x).item() == pytest.approx((3 + 2) / 2 + (1 + 0) / 2)
    assert losses.squared_norm(x).item() == pytest.approx((0 + 1 + 9 + 9) / 4)


# ---- the whole objective (12) and its gradient


def numpy_distribution(v: np.ndarray, normaliser: str) -> np.ndarray:
    if normaliser == "softmax":
        e = np.exp(v - v.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)
    v = np.maximum(v, 0)
    return v / v.sum(axis=1, keepdims=True)


def numpy_objective(
    x_real: np.ndarray, x: np.ndarray, y: np.ndarray, protos: np.ndarray, mu: float, how: str
) -> np.ndarray:
    """L_C + L_HFM of a one-layer softplus extractor with a linear head, from the formulas alone."""
    extract = lambda v: np.log1p(np.exp(v @ A.T))  # noqa: E731
    z_real, z = extract(x_real), extract(x)
    z_hard = (1 + mu) * z_real - mu * protos
    mask = np.maximum(W[y], 0)
    p = numpy_distribution(mask * z_hard, how)
    q = numpy_distribution(mask * z, how)
    eps = 1e-8
    kl = (p * (np.log(p + eps) - np.log(q + eps))).sum(axis=1)
    logits = z @ W.T + B
    ce = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    return ce + kl


g = np.random.default_rng(5)
A, W, B = g.normal(size=(6, 9)), g.normal(size=(3, 6)), g.normal(size=3)


class Tiny(nn.Module):
    """The same network for PyTorch, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Flatten(), nn.Linear(9, 6, bias=False), nn.Softplus()
        ).double()
        self.neck = nn.Identity()
        self.classifier = nn.Linear(6, 3).double()
        with torch.no_grad():
            self.trunk[1].weight.copy_(torch.from_numpy(A))
            self.classifier.weight.copy_(torch.from_numpy(W))
            self.classifier.bias.copy_(torch.from_numpy(B))

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.trunk(x)


def settings(mu: float, how: str, level: str = "vector") -> inversion.InversionSettings:
    return inversion.InversionSettings(
        steps=3, lr=0.1, fm_weight=1.0, mu=mu, tv=0.0, l2=0.0, normaliser=how, level=level
    )


@pytest.mark.parametrize("how", ["l1", "softmax"])
@pytest.mark.parametrize("mu", [0.0, 0.5, -0.5])
def test_objective_and_gradient_match_numpy(mu: float, how: str) -> None:
    x_real, x = g.normal(size=(4, 9)), g.normal(size=(4, 9))
    y, protos = np.array([0, 1, 2, 1]), np.abs(g.normal(size=(4, 6)))
    model, image = Tiny(), lambda v: torch.from_numpy(v).view(-1, 1, 3, 3)
    ty, tp = torch.from_numpy(y), torch.from_numpy(protos)
    target = inversion.target_features(model, image(x_real), ty, tp, settings(mu, how))
    x_hat = image(x.copy()).requires_grad_()
    loss = inversion.inversion_loss(model, x_hat, ty, target, settings(mu, how))
    np.testing.assert_allclose(
        loss.detach().numpy(), numpy_objective(x_real, x, y, protos, mu, how), atol=1e-5
    )
    (gradient,) = torch.autograd.grad(loss.sum(), x_hat)
    numeric = np.zeros_like(x)
    h = 1e-6
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        difference = numpy_objective(x_real, up, y, protos, mu, how) - numpy_objective(
            x_real, down, y, protos, mu, how
        )
        numeric[i] = difference.sum() / (2 * h)
    np.testing.assert_allclose(gradient.view(4, 9).numpy(), numeric, atol=1e-5)


# ---- inversion


def problem(n: int = 6) -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    model = build_model("cnn", in_shape=(1, 8, 8), num_classes=4, norm="gn", width=0.25, seed=1)
    x = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return model, x, torch.arange(n) % 4, torch.zeros(n, model.feature_dim)


def test_inversion_lowers_the_loss_and_leaves_the_model_alone() -> None:
    model, x, y, protos = problem()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    long = inversion.InversionSettings(60, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector")
    last = inversion.invert(model, x, y, protos, long, torch.Generator().manual_seed(3)).loss
    short = inversion.InversionSettings(1, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector")
    first = inversion.invert(model, x, y, protos, short, torch.Generator().manual_seed(3)).loss
    assert (last < first).all()
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_images_of_a_batch_do_not_influence_each_other() -> None:
    model, x, y, protos = problem()
    model.double()
    s = inversion.InversionSettings(20, 0.1, 1.0, 0.5, 0.0, 0.0, "l1", "vector")

    def run(real: torch.Tensor) -> torch.Tensor:
        g = torch.Generator().manual_seed(3)
        return inversion.invert(model, real.double(), y, protos.double(), s, g).images

    other = torch.cat([x[:1] + 1, x[1:]])
    torch.testing.assert_close(run(other)[1:], run(x)[1:])
    assert not torch.allclose(run(other)[0], run(x)[0])


def test_map_level_uses_the_last_convolution() -> None:
    model, x, *_ = problem()
    extract, head = inversion.split(model.eval(), "map")
    z = extract(x)
    assert z.shape == (6, model.forward_map(x)[0].numel())
    torch.testing.assert_close(head(z), model(x))


def test_bad_normaliser_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        losses.feature_matching(torch.ones(1, 2), torch.ones(1, 2), "l2")


# ---- the baselines' terms


def numpy_contrastive(z: np.ndarray, a: np.ndarray, b: np.ndarray, t: float) -> np.ndarray:
    def cos(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)

    near, far = np.exp(cos(z, a) / t), np.exp(cos(z, b) / t)
    return -np.log(near / (near + far))


def numpy_mmd(a: np.ndarray, b: np.ndarray) -> float:
    rows = np.concatenate([a, b])
    d = np.array([[((x - y) ** 2).sum() for y in rows] for x in rows])
    mean = d.sum() / (len(rows) * (len(rows) - 1))
    k = sum(np.exp(-d / (mean * 2.0**i)) for i in range(-2, 3))
    n = len(a)
    return float(k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean())


def test_proximal_gradient_is_that_of_the_squared_norm() -> None:
    w, anchor = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.randn(5)
    (0.3 / 2 * (w - anchor).norm() ** 2).backward()
    torch.testing.assert_close(losses.proximal_gradient(w.detach(), anchor, 0.3), w.grad)


def test_contrastive_equals_numpy() -> None:
    z, a, b = (torch.randn(6, 5, dtype=torch.float64) for _ in range(3))
    expected = numpy_contrastive(z.numpy(), a.numpy(), b.numpy(), 0.5)
    torch.testing.assert_close(losses.contrastive(z, a, b, 0.5), torch.from_numpy(expected))


def test_contrastive_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    same, opposite = torch.tensor([[2.0, 0.0]] * 3), torch.tensor([[-3.0, 0.0]] * 3)
    loss = losses.contrastive(z, same, opposite, 0.5)
    # similarities 1 and -1; a vector of zeros has 0 with both
    by_hand = math.log(1 + math.exp(-4))
    torch.testing.assert_close(loss, torch.tensor([by_hand, by_hand, math.log(2)]))
    torch.testing.assert_close(losses.contrastive(z, opposite, same, 0.5)[0], loss[0] + 4)


def test_contrastive_has_a_finite_gradient_at_zero_features() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    losses.contrastive(z, torch.randn(2, 3), torch.zeros(2, 3), 0.5).sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("sizes", [(6, 6), (4, 7), (1, 1)])
def test_mmd_equals_numpy(sizes: tuple[int, int]) -> None:
    a, b = (torch.randn(n, 5, dtype=torch.float64) + i for i, n in enumerate(sizes))
    assert losses.mmd(a, b).item() == pytest.approx(numpy_mmd(a.numpy(), b.numpy()), abs=1e-10)


def test_mmd_by_hand() -> None:
    """One point each: the only distance is the bandwidth, so k = Σ exp(-2^-i)."""
    a, b = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    by_hand = 2 * (5 - sum(math.exp(-(2.0**i)) for i in range(-2, 3)))
    assert losses.mmd(a, b).item() == pytest.approx(by_hand, abs=1e-5)


def test_mmd_takes_the_bandwidth_as_constant() -> None:
    """With a bandwidth that moved along, one point each would have no gradient at all."""
    a = torch.tensor([[0.0]], requires_grad=True)
    losses.mmd(a, torch.tensor([[3.0]])).backward()
    # d/da of -2·Σ exp(-(a-3)²/(9·2^i)) at 0
    by_hand = -2 * sum(math.exp(-1 / 2.0**i) * 6 / (9 * 2.0**i) for i in range(-2, 3))
    assert a.grad.item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 1000.1])
def test_mmd_of_one_repeated_point_is_zero(value: float) -> None:
    a = torch.full((5, 8), value, requires_grad=True)
    loss = losses.mmd(a, torch.full((5, 8), value))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(a.grad, torch.zeros_like(a))


def test_mmd_keeps_its_digits_far_from_the_origin() -> None:
    a, b = torch.randn(6, 4), torch.randn(6, 4) + 0.5
    assert losses.mmd(a + 1000, b + 1000).item() == pytest.approx(losses.mmd(a, b).item(), abs=1e-3)
