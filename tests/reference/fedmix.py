"""FedMix and NaiveMix (Yoon et al., arXiv 2107.00233, Algorithms 1 and 2)."""

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel

from .pool import Draws, Pool
from .setting import Loss, LossOf, Setting, State

CASES: dict[str, dict[str, Any]] = {
    name: {"strategy": name, "fedmix-mean-size": 7, "fedmix-lambda": 0.2}
    for name in ("naivemix", "fedmix")
}
OTHER = {"fedmix-lambda": 0.19}


def averages(s: Setting, k: int) -> Pool:
    """Means of M_k images and of their one-hot labels; samples that fill no mean are left out."""
    rows, size = s.parts[k], s["fedmix-mean-size"]
    order = torch.randperm(len(rows), generator=s.stream(1, k, "means"))
    groups = [rows[g] for g in order.split(size) if len(g) == size]
    labels = s.one_hot(s.y)
    return Pool(
        torch.stack([s.x[g].mean(dim=0) for g in groups]),
        torch.stack([labels[g].mean(dim=0) for g in groups]),
    )


def soft(logits: Tensor, shares: Tensor) -> Tensor:
    """-Σ ȳ log p of each sample."""
    return -(shares * logits.log_softmax(dim=1)).sum(dim=1)


def naivemix(s: Setting, draws: Draws) -> LossOf:
    """(1-λ)·CE(f(x̃), y) + λ·CE(f(x̃), ȳ) with x̃ = (1-λ)x + λx̄."""
    lam = s["fedmix-lambda"]

    def loss(model: SplitModel, x: Tensor, y: Tensor) -> Loss:
        mean = draws.take(len(y))
        logits = model((1 - lam) * x + lam * mean.x)
        own = F.cross_entropy(logits, y)
        return Loss((1 - lam) * own + lam * soft(logits, mean.y).mean(), own)

    return loss


def fedmix(s: Setting, draws: Draws) -> LossOf:
    """Its first-order expansion: (1-λ)·CE(f(x'), y) + λ·CE(f(x'), ȳ) + λ·⟨∂CE/∂x', x̄⟩.

    x' = (1-λ)x. The last term is each sample's directional derivative, taken in forward mode.
    """
    lam = s["fedmix-lambda"]

    def loss(model: SplitModel, x: Tensor, y: Tensor) -> Loss:
        mean, at = draws.take(len(y)), (1 - lam) * x
        weights = dict(model.named_parameters())

        def each(images: Tensor) -> Tensor:
            logits = functional_call(model, weights, (images,))
            return F.cross_entropy(logits, y, reduction="none")

        own, along = jvp(each, (at,), (mean.x,))
        theirs = soft(model(at), mean.y).mean()
        return Loss((1 - lam) * own.mean() + lam * theirs + lam * along.mean(), own.mean())

    return loss


def simulate(s: Setting) -> State:
    """Averages of everybody before round 1; one drawn for each sample of each step."""
    rule = fedmix if s["strategy"] == "fedmix" else naivemix
    parts = [averages(s, k) for k in s.clients]
    pool = Pool(*(torch.cat(column) for column in zip(*parts, strict=True)))
    w = s.initial()
    for t in s.rounds:
        losses = [rule(s, Draws(s, pool, t, k)) for k in s.clients]
        w = s.average([s.local(w, t, k, losses[k]).model.state_dict() for k in s.clients])
    return w
