"""Adam on one tensor, without what PyTorch's class brings along."""

import torch
from torch import Tensor
from torch.optim.adam import adam


class Adam:
    """`torch.optim.Adam` on one tensor, without weight decay: the same numbers.

    To make PyTorch's class loads its compiler: 1.4 s of a processor and 155 MB of every process
    that has not used it yet. A SuperNode starts a process for every message, maybe on a small
    device.

    Parameters
    ----------
    x : Tensor
        What is optimised, in place.
    lr : float
        Step size.
    beta1 : float
        First momentum, in [0, 1).
    """

    def __init__(self, x: Tensor, lr: float, beta1: float = 0.9) -> None:
        self.x, self.lr, self.beta1 = x, lr, beta1
        self.mean, self.square = torch.zeros_like(x), torch.zeros_like(x)
        self.steps = torch.tensor(0.0)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """One step along a gradient of x's shape."""
        adam(
            [self.x],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            amsgrad=False,
            beta1=self.beta1,
            beta2=0.999,
            lr=self.lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
