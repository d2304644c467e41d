"""What the average is distilled to: the box of MrTF (arXiv 2305.04201); FedDF is a row of it.

With q_k = σ(τ·f_k / std f_k) (6), a round's target on the server's images is::

    ST   (6)         mean_k q_k
    RD   (10)        u Σ_k w_k q_k + (1-u)/2 (q(θ_t) + q(θ_{t+1})),  w = softmax_k(-entropy q_k)
    CLR  (11), (12)  softmax_c(-τ (1 - cos(h(x), c_c))) with the target's own centroids c_c

The pure functions are in `distillation`; `mrtf_variants` says in what the authors' code differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedsyn_flwr.config import RefinementConfig
from fedsyn_flwr.server import distillation as d
from fedsyn_flwr.server.mrtf_variants import Reading

RECENT = 5
ENTROPY_LIMIT = 0.95


class View(NamedTuple):
    """A model's features (M, d) and logits (M, C) on the set."""

    features: Tensor
    logits: Tensor


class Target:
    """Makes a round's target out of its teachers.

    Parameters
    ----------
    settings : RefinementConfig
        Modules, τ and the rest, with the method's own filled in.

    Attributes
    ----------
    metrics : dict
        What is reported of the last target.
    memory : Tensor or None
        The running mean over rounds (the released code's), shape (M, C).
    past_losses : list of float
        The clients' mean losses of the last rounds, as many as count.
    """

    def __init__(self, settings: RefinementConfig) -> None:
        self.settings = settings
        self.reading = Reading.of(settings)
        self.modules = set(settings.mrtf_modules.split("+"))
        self.metrics: dict[str, float] = {}
        self.past_losses: list[float] = []
        self.memory: Tensor | None = None

    def make(
        self,
        logits: Tensor,
        losses: Sequence[float],
        before: Callable[[], View],
        average: View,
        server_round: int,
    ) -> Tensor:
        """The target of a round.

        Parameters
        ----------
        logits : Tensor
            f_k of the round's clients, shape (S, M, C).
        losses : sequence of float
            L_{t,k}, their mean training losses.
        before : callable
            Looks at θ_t, which the round began with; asked only where it matters.
        average : View
            Of θ_{t+1}, the average.
        server_round : int
            t, from 1; the clusters begin later.

        Returns
        -------
        Tensor
            Rows are distributions, shape (M, C).
        """
        self.loss = sum(losses) / len(losses)
        sizes = d.magnitudes(logits)
        self.metrics = {f"refinement/logit_std_{name}": size for name, size in sizes.items()}
        target = self.ensemble(logits, before, average)
        if "clr" in self.modules and server_round >= self.reading.first:
            target = self.cluster(target, average.features)
        if self.reading.remember:
            target = self.remembered(target)
        self.metrics["refinement/entropy"] = float(d.entropy(target).mean())
        return target

    def ensemble(self, logits: Tensor, before: Callable[[], View], average: View) -> Tensor:
        """The target before its clusters: the modules' row of the ablation."""
        if "avglogi" in self.modules:
            target = d.average_logits(logits)
            return target if self.reading.power == 1 else d.tempered(target, self.reading.power)
        if "avgprob" in self.modules:
            return d.average_probabilities(logits)
        q = self.stabilised(logits)
        self.count_chosen(d.confidence(q))
        if "rd" not in self.modules:
            return q.mean(dim=0)
        old, new = self.stabilised(before().logits), self.stabilised(average.logits)
        u = self.trust(logits.shape[-1])
        self.metrics["refinement/u"] = u
        return (d.rectified_released if self.reading.together else d.rectified)(q, old, new, u)

    def stabilised(self, logits: Tensor) -> Tensor:
        """ST, eq. (6), in this run's reading."""
        return d.stabilised(logits, self.reading.tau, self.reading.std_batch)

    def cluster(self, target: Tensor, features: Tensor) -> Tensor:
        """CLR, eqs. (11) and (12), unless it would wipe the target out."""
        refined, empty = d.clustered(target, features, self.reading.factor, self.reading.centre)
        limit = ENTROPY_LIMIT * math.log(target.shape[1])
        useless = self.reading.guard and float(d.entropy(refined).mean()) > limit
        self.metrics["refinement/clr_empty_classes"] = empty
        self.metrics["refinement/clr_skipped"] = int(useless)
        return target if useless else refined

    def trust(self, classes: int) -> float:
        """u_t by this round's loss; the released code's, by the last five rounds before it."""
        loss = self.loss
        if self.reading.together:
            past = self.past_losses
            loss = sum(past) / len(past) if past else math.log(classes)
        return d.trust(loss, classes, self.settings.mrtf_u_min)

    def remembered(self, target: Tensor) -> Tensor:
        """The running mean over rounds, 1 - u of it the past; rows become distributions."""
        if self.memory is not None:
            u = self.trust(target.shape[1])
            target = u * target + (1 - u) * self.memory.to(target.device)
        self.memory = target
        return d.tempered(target, 1.0)

    def used(self) -> None:
        """The target has led to a refined model: its loss counts among the past ones."""
        self.past_losses = [*self.past_losses, self.loss][-RECENT:]

    def count_chosen(self, weights: Tensor) -> None:
        """For how many of the samples each client is the most confident; weights (S, M)."""
        shares = torch.bincount(weights.argmax(dim=0), minlength=len(weights)) / weights.shape[1]
        self.metrics["refinement/chosen_share_max"] = float(shares.max())
        self.metrics["refinement/chosen_share_min"] = float(shares.min())
        self.metrics["refinement/chosen_clients"] = int((shares > 0).sum())
