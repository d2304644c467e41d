"""Averages of images, and losses that mix them in (FedMix, ICLR 2021, arXiv 2107.00233)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# ---- averages


def average_count(n: int, size: int) -> int:
    """How many averages n samples give: of ``size`` each, or one of all if they are fewer."""
    return max(n // size, min(n, 1))


def mean_groups(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Which of n samples make up each average: positions (q, M), M = min(size, n), none twice.

    Samples that fill no further average are left out: fewer of them would hide each other less.
    """
    q = average_count(n, size)
    taken = torch.randperm(n, generator=generator)[: q * min(size, n)]
    return taken.view(q, min(size, n))


def mean_label(y: Tensor, classes: int) -> Tensor:
    """The mean of the labels (n,) as one-hot vectors, float32 (C,)."""
    return F.one_hot(y, classes).to(torch.float32).mean(dim=0)


# ---- losses


class Mixed(NamedTuple):
    """Each sample's objective (B,), and the cross-entropy with its own label (B,)."""

    objective: Tensor
    cross_entropy: Tensor


def fedmix(
    model: nn.Module, x: Tensor, y: Tensor, mean_x: Tensor, mean_y: Tensor, lam: float
) -> Mixed:
    """FedMix's approximation of mixing x with raw images of which only averages are known.

    (1-λ)·CE(f(x'), y) + λ·CE(f(x'), ȳ) + λ·⟨∂CE(f(x'), y)/∂x', x̄⟩ with x' = (1-λ)x. Every sample
    has a term and a gradient of its own: they are summed, not averaged, before the derivative is
    taken, so that its size does not depend on B. With BatchNorm in train mode a sample's
    cross-entropy depends on the whole batch, and so does its derivative.

    Parameters
    ----------
    x, y : Tensor
        Normalised images (B, C, H, W) and labels (B,).
    mean_x, mean_y : Tensor
        An average (x̄, ȳ) for each: (B, C, H, W), and shares of the classes (B, classes).
    lam : float
        λ in [0, 1]; 0 leaves the cross-entropy.

    Returns
    -------
    Mixed
        With a graph through the first derivative: it is freed with the objective.
    """
    scaled = ((1 - lam) * x).requires_grad_()
    logits = model(scaled)
    own = F.cross_entropy(logits, y, reduction="none")
    theirs = F.cross_entropy(logits, mean_y, reduction="none")
    (gradient,) = torch.autograd.grad(own.sum(), scaled, create_graph=True)
    taylor = (gradient * mean_x).flatten(1).sum(dim=1)
    return Mixed((1 - lam) * own + lam * theirs + lam * taylor, own)


def naivemix(
    model: nn.Module, x: Tensor, y: Tensor, mean_x: Tensor, mean_y: Tensor, lam: float
) -> Mixed:
    """Mixup with the averages themselves: no derivative; as for `fedmix` otherwise.

    (1-λ)·CE(f(x̃), y) + λ·CE(f(x̃), ȳ) with x̃ = (1-λ)x + λx̄.
    """
    logits = model((1 - lam) * x + lam * mean_x)
    own = F.cross_entropy(logits, y, reduction="none")
    return Mixed((1 - lam) * own + lam * F.cross_entropy(logits, mean_y, reduction="none"), own)
