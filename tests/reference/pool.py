"""What FedGAN and HFMDS-FL have in common: eq. (6) of arXiv 2308.04761 on a pool of images."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.rng import Reshuffled

from .setting import Loss, LossOf, Setting


class Pool(NamedTuple):
    """Images (N, C, H, W), normalised, and labels (N,) or shares of classes (N, classes)."""

    x: Tensor
    y: Tensor


class Draws:
    """Batches of a pool for one client's round: all of it in a random order, then anew."""

    def __init__(self, s: Setting, pool: Pool, t: int, k: int) -> None:
        self.pool, self.order = pool, Reshuffled(len(pool.y), s.stream(t, k, "pool"))

    def take(self, n: int) -> Pool:
        """The next n."""
        rows = self.order.take(n)
        return Pool(self.pool.x[rows], self.pool.y[rows])


def mixed(s: Setting, draws: Draws, seen: list[tuple[Tensor, Tensor]]) -> LossOf:
    """α·CE(real) + (1-α)·CE(synthetic), as many of each; ``seen`` gathers the real features."""

    def loss(model: SplitModel, x: Tensor, y: Tensor) -> Loss:
        made, alpha = draws.take(len(y)), s["hfmds-alpha"]
        if s["hfmds-joint-batch"]:
            z = features(s, model, torch.cat([x, made.x]))
            logits, others = head(s, model, z).split(len(y))
            z = z[: len(y)]
        else:
            z = features(s, model, x)
            logits, others = head(s, model, z), model(made.x)
        seen.append((z.detach(), y))
        plain = F.cross_entropy(logits, y)
        return Loss(alpha * plain + (1 - alpha) * F.cross_entropy(others, made.y), plain)

    return loss


def features(s: Setting, model: SplitModel, x: Tensor) -> Tensor:
    """z at the run's level: the pooled vector, or the last convolution's map."""
    return model.forward_features(x) if s["feature-level"] == "vector" else model.forward_map(x)


def head(s: Setting, model: SplitModel, z: Tensor) -> Tensor:
    """Logits of such features."""
    logits: Tensor = model.classifier(z if s["feature-level"] == "vector" else model.neck(z))
    return logits
