"""Class means of features, kept by a client across rounds (HFMDS-FL, section IV)."""

import torch
from torch import Tensor


class Prototypes:
    """Class means of features: running sums within a round, momentum across rounds.

    Attributes
    ----------
    mean : Tensor
        z̄_c, shape (C, d).
    known : Tensor
        Which classes have a prototype, shape (C,), bool.
    """

    def __init__(self, mean: Tensor, known: Tensor) -> None:
        self.mean, self.known = mean, known
        self.sums = torch.zeros_like(mean)
        self.counts = torch.zeros(len(mean), device=mean.device)

    def observe(self, z: Tensor, y: Tensor) -> None:
        """Add a batch's features (B, d) of classes (B,) to this round's sums."""
        self.sums.index_add_(0, y, z)
        self.counts.index_add_(0, y, torch.ones_like(y, dtype=self.counts.dtype))

    def update(self, momentum: float) -> None:
        """z̄_c ← (1-λ)·mean_c + λ·z̄_c; a first prototype is the mean itself."""
        seen = self.counts > 0
        means = self.sums / self.counts.clamp(min=1)[:, None]
        mixed = torch.where(
            self.known[:, None], (1 - momentum) * means + momentum * self.mean, means
        )
        self.mean = torch.where(seen[:, None], mixed, self.mean)
        self.known = self.known | seen
