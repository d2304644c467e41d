"""How much synthetic images give away."""

import torch
from torch import Tensor


def psnr(x: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, 10·log10(1 / MSE).

    Parameters
    ----------
    x, reference : Tensor
        Pixels in [0, 1] (values outside are clamped), shape (B, C, H, W).

    Returns
    -------
    Tensor
        Shape (B,); higher is more alike, 100 dB at most.
    """
    mse = (x.clamp(0, 1) - reference.clamp(0, 1)).square().mean(dim=(1, 2, 3))
    return -10 * torch.log10(mse.clamp(min=1e-10))
