"""Targets out of several models' logits, and the loop that distils them into one model.

FedDF (arXiv 2006.07242) averages logits; MrTF (arXiv 2305.04201) stabilises them (eq. 6), rectifies
their average (eq. 10) and refines it by clusters (eqs. 11 and 12). All targets are pure functions
of logits f of shape (S, M, C): S models, M unlabelled samples, C classes. No label comes in here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedsyn_flwr.compute.cuda_graphs import Passes, Tensors, plainly
from fedsyn_flwr.compute.device import precision, to_device
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import derive, torch_generator

EPS = 1e-8
# A class with less mass than this over the whole set has no centroid.
NO_MASS = 1e-6
LAST_LR = 1e-8
# 500 steps of 64 on 10,000 images, as the papers have it.
PASSES = 3.2


# ---- targets


def average_logits(logits: Tensor) -> Tensor:
    """FedDF's AvgLogi, σ(Σ_k f_k / S): (S, M, C) → (M, C)."""
    return logits.mean(dim=0).softmax(dim=-1)


def average_probabilities(logits: Tensor) -> Tensor:
    """AvgProb, Σ_k σ(f_k) / S: (S, M, C) → (M, C); of one model: its softmax."""
    return logits.softmax(dim=-1).mean(dim=0)


def stabilised(logits: Tensor, tau: float, batch: int = 0) -> Tensor:
    """ST, σ(τ·f / std(f)) of each model (MrTF, eq. 6).

    Parameters
    ----------
    logits : Tensor
        Shape (M, C), or (S, M, C): each model has a standard deviation of its own.
    tau : float
        τ > 0: the larger, the sharper.
    batch : int
        Over how many samples the standard deviation is taken; 0 = all M.

    Returns
    -------
    Tensor
        Probabilities, shape of ``logits``; uniform where all logits are equal.
    """
    pieces = logits.split(batch or logits.shape[-2], dim=-2)
    scaled = [p / p.std(dim=(-2, -1), keepdim=True).clamp(min=EPS) for p in pieces]
    return (tau * torch.cat(scaled, dim=-2)).softmax(dim=-1)


def magnitudes(logits: Tensor) -> dict[str, float]:
    """How large the models' logits are: ``min``, ``median`` and ``max`` over k of std(f_k).

    The standard deviation of eq. 6 is over all classes and samples; shape (S, M, C).
    """
    stds = logits.std(dim=(-2, -1))
    return {name: float(stds.quantile(q)) for name, q in (("min", 0), ("median", 0.5), ("max", 1))}


def entropy(p: Tensor) -> Tensor:
    """Entropy in nats of distributions over the last axis, in [0, log C]; 0·log 0 = 0."""
    return torch.special.entr(p).sum(dim=-1)


def confidence(q: Tensor, divisor: float = 1.0) -> Tensor:
    """w_k(x) = softmax over the models of -H(q_k(x)) / divisor: (S, M, C) → (S, M)."""
    return (-entropy(q) / divisor).softmax(dim=0)


def trust(loss: float, classes: int, least: float) -> float:
    """u_t = u_min + (1 - u_min)·L / log C, in [u_min, 1]: the clients' share of the target.

    ``loss`` is the clients' mean training cross-entropy in nats. The better they fit their own
    data, the more they have drifted apart, and the less they are trusted.
    """
    return min(1.0, max(least, least + (1 - least) * loss / math.log(classes)))


def rectified(q: Tensor, before: Tensor, after: Tensor, u: float) -> Tensor:
    """RD, u·Σ_k w_k(x) q_k(x) + (1-u)/2·(q(x; θ_t) + q(x; θ_{t+1})) (MrTF, eq. 10).

    Parameters
    ----------
    q : Tensor
        The clients' stabilised probabilities, shape (S, M, C).
    before, after : Tensor
        Those of the model the round began with and of the average, shape (M, C).
    u : float
        u_t in [0, 1].
    """
    weighted = (confidence(q)[:, :, None] * q).sum(dim=0)
    return u * weighted + (1 - u) / 2 * (before + after)


def rectified_released(q: Tensor, before: Tensor, after: Tensor, u: float) -> Tensor:
    """RD as the authors' code has it: one softmax of -H / C over all S + 2 models.

    The weights are multiplied by u/S for the clients and (1-u)/2 for the two global models, and
    not normalised again, so rows sum to less than 1. Shapes as for `rectified`.
    """
    everyone = torch.cat([q, before[None], after[None]])
    share = torch.full((len(everyone), 1, 1), u / len(q), dtype=q.dtype, device=q.device)
    share[-2:] = (1 - u) / 2
    weights = confidence(everyone, divisor=q.shape[-1])[:, :, None]
    return (share * weights * everyone).sum(dim=0)


def clustered(target: Tensor, features: Tensor, factor: float, centre: bool) -> tuple[Tensor, int]:
    """CLR, softmax_c(-factor·(1 - cos(h(x), c_c))) with c_c the target's centroids (eqs. 11, 12).

    Parameters
    ----------
    target : Tensor
        Shape (M, C), ≥ 0; rows need not sum to 1.
    features : Tensor
        h of the M samples, shape (M, d).
    factor : float
        τ. The squared distance of normalised vectors is 2·(1 - cos): τ there is 2τ here.
    centre : bool
        Take the features' mean off first. After a ReLU all of them are positive and every cosine
        is near 1: uncentred, the refined target is next to uniform.

    Returns
    -------
    tuple
        The refined target (M, C), and how many classes without mass were left out. Where none
        has any the target comes back as it is.
    """
    mass = target.sum(dim=0)
    empty = mass <= NO_MASS
    if bool(empty.all()):
        return target, len(mass)
    h = features - features.mean(dim=0) if centre else features
    centroids = (target.T @ h) / mass.clamp(min=NO_MASS)[:, None]
    cosine = F.normalize(h, dim=1) @ F.normalize(centroids, dim=1).T
    scores = (-factor * (1 - cosine)).masked_fill(empty, -torch.inf)
    return scores.softmax(dim=1), int(empty.sum())


def tempered(p: Tensor, power: float) -> Tensor:
    """p^power, normalised: below 1 it flattens; rows become distributions. Shape (M, C)."""
    return (power * (p + EPS).log()).softmax(dim=-1)


# ---- the student


@dataclass(frozen=True)
class DistilSettings:
    """The distillation's constants.

    ``steps`` ≥ 1 of Adam with ``lr`` > 0, falling as a cosine to next to 0, on batches of
    ``batch`` samples. ``clip_norm`` 0 is off. ``moving_statistics``: BatchNorm layers normalise
    by the batch and update their running statistics, else they use the running ones as they are.
    ``amp``: the student computes in bfloat16.
    """

    steps: int
    lr: float
    weight_decay: float
    batch: int
    clip_norm: float
    moving_statistics: bool
    amp: bool = False


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-Σ_c p_c log σ(f)_c, mean over the batch; shapes (B, C). KL(p ‖ σ(f)) plus a constant."""
    return F.cross_entropy(logits, target)


def steps_for(count: int, batch: int) -> int:
    """Steps of ``batch`` that pass over ``count`` images 3.2 times, at least 1.

    Many more, and the student takes over the targets' mistakes: refined and ensemble accuracy
    become the same number.
    """
    return max(1, round(PASSES * count / batch))


def batches(count: int, settings: DistilSettings, generator: torch.Generator) -> Tensor:
    """Sample indices of every step, int64 (steps, batch): permutations one after the other."""
    wanted = settings.steps * settings.batch
    shuffles = range(-(-wanted // count))
    order = torch.cat([torch.randperm(count, generator=generator) for _ in shuffles])
    return order[:wanted].view(settings.steps, settings.batch)


def distil(
    flat: FlatModel,
    fetch: Callable[[Tensor], Tensor],
    target: Tensor,
    settings: DistilSettings,
    *,
    seed: int,
    key: tuple[int | str, ...],
    passes: Passes = plainly,
) -> None:
    """Train the model in place towards the targets.

    Parameters
    ----------
    flat : FlatModel
        The student, already at the weights it starts from; left in eval mode.
    fetch : callable
        Indices (B,) → inputs (B, c, h, w).
    target : Tensor
        Probabilities, shape (M, C), on the model's device.
    settings : DistilSettings
        Optimiser and length.
    seed, key
        The run's seed and what identifies this distillation, e.g. (round,).
    passes : Passes, optional
        How the forward and backward passes are done.
    """
    optimiser = torch.optim.Adam(
        [flat.trainable], lr=settings.lr, weight_decay=settings.weight_decay, foreach=False
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps, LAST_LR)
    order = batches(len(target), settings, torch_generator(seed, *key, "distillation"))
    set_mode(flat, settings.moving_statistics)
    form = (id(flat), settings.moving_statistics, settings.amp)

    def work(x: Tensor, p: Tensor) -> Tensors:
        with precision(x.device, settings.amp):
            loss = soft_cross_entropy(flat.module(x), p)
        flat.backward(loss)
        flat.gather()
        return (loss.detach(),)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, *key, "distillation-dropout"))
        for chosen in order:
            p = target[to_device(chosen, target.device)]
            passes(form, work, fetch(chosen), p)
            if settings.clip_norm:
                torch.nn.utils.clip_grad_norm_([flat.trainable], settings.clip_norm)
            optimiser.step()
            schedule.step()
    flat.module.eval()


def set_mode(flat: FlatModel, moving_statistics: bool) -> None:
    """Training mode, BatchNorm layers only where their statistics are to move."""
    flat.module.train()
    for layer in flat.module.modules():
        if isinstance(layer, _BatchNorm):
            layer.train(moving_statistics)
