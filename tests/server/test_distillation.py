"""Targets by hand (three classes, two samples), their gradients, and the student's loop."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel, build_model
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.server import distillation as d

LOG2, LOG3 = math.log(2), math.log(3)
# Two models that say (1/2, 1/4, 1/4) and (1/6, 2/3, 1/6) of the first sample, the reverse of the
# second; logits are logarithms, up to a constant of each row.
F_A = torch.tensor([[LOG2, 0.0, 0.0], [0.0, math.log(4), 0.0]])
F_B = torch.tensor([[0.0, math.log(4), 0.0], [LOG2, 0.0, 0.0]])
BOTH = torch.stack([F_A, F_B])


def close(actual: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=0)


# ---- FedDF and AvgProb


def test_average_logits_by_hand() -> None:
    """Mean logits (log √2, log 2, 0): √2, 2 and 1, over their sum."""
    total = math.sqrt(2) + 3
    close(d.average_logits(BOTH), [[math.sqrt(2) / total, 2 / total, 1 / total]] * 2)


def test_average_probabilities_by_hand() -> None:
    close(d.average_probabilities(BOTH), [[1 / 3, 11 / 24, 5 / 24]] * 2)


def test_one_teacher_is_its_softmax() -> None:
    assert torch.equal(d.average_probabilities(F_A[None]), F_A.softmax(dim=1))
    assert torch.equal(d.average_logits(F_A[None]), F_A.softmax(dim=1))


# ---- ST, eq. (6)


def test_stabilised_by_hand() -> None:
    """Logits 0, 3, 0 and 3, 0, 0: mean 1, variance 2·(4 + 1 + 1)/5, so 3τ/std = τ·√3.75."""
    q = d.stabilised(torch.tensor([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0]]), tau=4)
    e = math.exp(4 * math.sqrt(3.75))
    close(q, [[1 / (e + 2), e / (e + 2), 1 / (e + 2)], [e / (e + 2), 1 / (e + 2), 1 / (e + 2)]])


def test_magnitudes_by_hand() -> None:
    """The standard deviation above, √2.4, of three models at 1, 2 and 10 times the scale."""
    one = torch.tensor([[0.0, 3.0, 0.0], [3.0, 0.0, 0.0]])
    found = d.magnitudes(torch.stack([10 * one, one, 2 * one + 7]))
    assert list(found) == ["min", "median", "max"]
    assert list(found.values()) == pytest.approx([factor * 2.4**0.5 for factor in (1, 2, 10)])


def test_stabilised_has_no_scale_and_each_model_its_own() -> None:
    q = d.stabilised(BOTH, tau=4)
    torch.testing.assert_close(d.stabilised(BOTH * torch.tensor([9.0, 0.1])[:, None, None], 4), q)
    torch.testing.assert_close(q[0], d.stabilised(F_A, tau=4))
    assert torch.equal(d.stabilised(torch.zeros(2, 3), tau=4), torch.full((2, 3), 1 / 3))


def test_stabilised_per_batch() -> None:
    f = torch.arange(12.0).reshape(4, 3) ** 2
    halves = torch.cat([d.stabilised(f[:2], 1), d.stabilised(f[2:], 1)])
    torch.testing.assert_close(d.stabilised(f, 1, batch=2), halves)
    torch.testing.assert_close(d.stabilised(torch.stack([f, -f]), 1, batch=2)[0], halves)
    assert not torch.allclose(d.stabilised(f, 1), halves)


# ---- RD, eq. (10)


def test_confidence_by_hand() -> None:
    """Entropies 0 and log 2: weights e^0 and e^(-log 2), so 2/3 and 1/3."""
    q = torch.tensor([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]])
    close(d.confidence(q), [[2 / 3], [1 / 3]])
    ratio = 2 ** (1 / 3)  # divided by C = 3
    close(d.confidence(q, divisor=3), [[ratio / (1 + ratio)], [1 / (1 + ratio)]])


@pytest.mark.parametrize(("loss", "u"), [(0.0, 0.25), (LOG3 / 3, 0.5), (LOG3, 1.0), (9.0, 1.0)])
def test_trust_by_hand(loss: float, u: float) -> None:
    assert d.trust(loss, 3, 0.25) == pytest.approx(u)
    assert d.trust(loss, 3, 1.0) == 1.0


def test_rectified_by_hand() -> None:
    q = torch.tensor([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]])  # weighted: (5/6, 1/6, 0)
    before, after = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    # half of it, and a quarter of either
    close(d.rectified(q, before, after, u=0.5), [[5 / 12, 1 / 12 + 1 / 4, 1 / 4]])
    close(d.rectified(q, before, after, u=1.0), [[5 / 6, 1 / 6, 0.0]])
    close(d.rectified(q, before, after, u=0.0), [[0.0, 0.5, 0.5]])


def test_rectified_as_released_by_hand() -> None:
    """Four models, all certain: each has 1/4 of the softmax; then u/2 or (1-u)/2."""
    q = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    before, after = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    target = d.rectified_released(q, before, after, u=0.8)
    close(target, [[0.1, 0.1 + 0.025, 0.025]])
    close(d.tempered(target, 1.0), [[0.4, 0.5, 0.1]])


# ---- CLR, eqs. (11) and (12)


def test_clusters_by_hand() -> None:
    """Two classes at right angles, one class without mass: e^0 against e^(-4)."""
    h = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    refined, empty = d.clustered(target, h, factor=4, centre=False)
    low = math.exp(-4)
    close(refined, [[1 / (1 + low), low / (1 + low), 0.0], [low / (1 + low), 1 / (1 + low), 0.0]])
    assert empty == 1


def test_centroids_are_weighted_by_the_target() -> None:
    """c_0 = (3·(1, 0) + 1·(0, 1))/4: its cosine with (1, 0) is 3/√10."""
    h = torch.eye(2)
    refined, _ = d.clustered(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), h, 1, centre=False)
    near, far = (math.exp(-(1 - c / math.sqrt(10))) for c in (3, 1))
    close(refined[0], [near / (near + far), far / (near + far)])


def test_scale_of_the_target_does_not_matter() -> None:
    h, target = torch.randn(5, 4), torch.rand(5, 3)
    torch.testing.assert_close(
        d.clustered(target, h, 4, True)[0], d.clustered(target / 7, h, 4, True)[0]
    )


def test_factor_eight_is_the_squared_distance_times_four() -> None:
    h, target = torch.randn(5, 4), torch.rand(5, 3)
    centroids = F.normalize((target.T @ h) / target.sum(dim=0)[:, None], dim=1)
    squared = (F.normalize(h, dim=1)[:, None] - centroids[None]).square().sum(dim=2)
    torch.testing.assert_close(d.clustered(target, h, 8, False)[0], (-4 * squared).softmax(dim=1))


def test_centring_keeps_positive_features_apart() -> None:
    """The trap: features after a ReLU, far from 0, have cosines near 1."""
    h = torch.tensor([[10.0, 9.0], [9.0, 10.0]])
    target = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    flat, sharp = (d.clustered(target, h, 4, centre)[0] for centre in (False, True))
    assert d.entropy(flat).mean() > 0.99 * LOG2
    close(sharp[0, 0], 1 / (1 + math.exp(-8)))


def test_no_mass_at_all_changes_nothing() -> None:
    target = torch.zeros(2, 3)
    refined, empty = d.clustered(target, torch.eye(2), 4, True)
    assert torch.equal(refined, target)
    assert empty == 3


def test_tempered_by_hand() -> None:
    close(d.tempered(torch.tensor([[0.8, 0.2]]), 0.5), [[2 / 3, 1 / 3]])


# ---- gradients


def test_gradient_of_the_student_by_hand() -> None:
    """∂/∂f of the loss is (σ(f) - p)/B."""
    f = F_A.clone().requires_grad_()
    p = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    d.soft_cross_entropy(f, p).backward()
    torch.testing.assert_close(f.grad, (F_A.softmax(dim=1) - p) / 2)


def test_gradients_through_the_targets() -> None:
    f = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    g = torch.randn(3, 3, dtype=torch.float64)

    def target(logits: torch.Tensor) -> torch.Tensor:
        q = d.stabilised(logits, 4)
        mixed = d.rectified(q, g.softmax(dim=1), q[0], 0.5)
        return d.clustered(mixed, g, 4, True)[0] + d.average_logits(logits)

    assert torch.autograd.gradcheck(target, (f,))


# ---- the loop

SETTINGS = d.DistilSettings(
    steps=40, lr=0.05, weight_decay=0.0, batch=4, clip_norm=100.0, moving_statistics=True
)


def student(norm: str = "bn", width: float = 0.02) -> FlatModel:
    model = build_model("mlp", in_shape=(1, 2, 2), num_classes=3, norm=norm, width=width, seed=0)
    return FlatModel(model, channels_last=False)


def test_batches_are_permutations_in_a_row() -> None:
    settings = d.DistilSettings(5, 0.1, 0.0, 4, 0.0, True)
    order = d.batches(10, settings, torch.Generator().manual_seed(0))
    assert order.shape == (5, 4)
    assert sorted(order.flatten()[:10].tolist()) == list(range(10))
    assert sorted(order.flatten()[10:].tolist()) == list(range(10))
    one = d.batches(1, settings, torch.Generator().manual_seed(0))
    assert one.tolist() == [[0] * 4] * 5


def test_student_learns_the_targets() -> None:
    flat = student("none", width=0.1)
    x = torch.randn(12, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    target = d.stabilised(torch.randn(12, 3, generator=torch.Generator().manual_seed(1)), 2)
    start = float(d.soft_cross_entropy(flat.module(x), target).detach())
    settings = replace(SETTINGS, steps=200, lr=0.005)
    d.distil(flat, lambda i: x[i], target, settings, seed=0, key=(1,))
    least = float(d.entropy(target).mean())
    end = float(d.soft_cross_entropy(flat.module(x), target).detach())
    assert end - least < 0.2 * (start - least)
    assert not flat.module.training


def test_the_loop_is_torchs_own() -> None:
    """Against a loop over the parameters, batch by batch."""
    x, target = torch.randn(6, 1, 2, 2), torch.rand(6, 3).softmax(dim=1)
    settings = d.DistilSettings(6, 0.01, 1e-2, 4, 0.05, True)
    flat = student()
    d.distil(flat, lambda i: x[i], target, settings, seed=0, key=(1,))
    model = build_model("mlp", in_shape=(1, 2, 2), num_classes=3, norm="bn", width=0.02, seed=0)
    adam = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-2)
    order = d.batches(6, settings, d.torch_generator(0, 1, "distillation"))
    for step, chosen in enumerate(order):
        rate = 1e-8 + (0.01 - 1e-8) * (1 + math.cos(math.pi * step / 6)) / 2
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        loss = -(target[chosen] * model(x[chosen]).log_softmax(dim=1)).sum(dim=1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        adam.step()
    for name, tensor in flat.named().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("moving", [True, False])
def test_whether_running_statistics_move(moving: bool) -> None:
    flat, x = student(), torch.randn(12, 1, 2, 2)
    before = flat.copy_vectors()
    settings = d.DistilSettings(3, 0.01, 0.0, 4, 0.0, moving)
    d.distil(flat, lambda i: x[i], torch.full((12, 3), 1 / 3), settings, seed=0, key=(1,))
    same = (flat.vectors()["buffers"] == before["buffers"]).all()
    assert same != moving
    assert (flat.vectors()["counters"] == before["counters"]).all() != moving
    assert not (flat.vectors()["trainable"] == before["trainable"]).all()


def test_dropout_is_the_seeds() -> None:
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    body = nn.Flatten()
    x, finals = torch.randn(8, 4), []
    start = {k: v.clone() for k, v in head.state_dict().items()}
    for noise in (1, 2):
        head.load_state_dict(start)
        flat = FlatModel(SplitModel(nn.Identity(), body, head, feature_dim=4, num_classes=3))
        torch.manual_seed(noise)
        d.distil(
            flat, lambda i: x[i], torch.eye(3)[torch.arange(8) % 3], SETTINGS, seed=0, key=(1,)
        )
        finals.append(flat.digest())
    assert finals[0] == finals[1]


def test_steps_follow_the_size_of_the_set():
    """500 on the papers' 10,000 images, the same share of passes on any other set."""
    assert [d.steps_for(n, 64) for n in (10_000, 3_000, 360, 3)] == [500, 150, 18, 1]
