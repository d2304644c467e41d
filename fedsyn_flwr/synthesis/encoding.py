"""How synthetic images travel and are stored: as floats, as half floats or as 8-bit pixels."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr.data.resident import denormalise, normalise

DType = Literal["float32", "float16", "uint8"]


def encode(x: Tensor, dtype: DType, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Normalised images as they are sent.

    Parameters
    ----------
    x : Tensor
        float32 (N, C, H, W) in normalised pixel space.
    dtype : {"float32", "float16", "uint8"}
        ``float32`` keeps every bit, ``float16`` errs by at most 2^-11 of a value. ``uint8`` are
        pixels 0 to 255: values outside the pixels' range are clamped to it, the others err by at
        most half a step, 1/510 of the range.
    mean, std : sequence of float
        Per channel, in [0, 1] units.

    Returns
    -------
    ndarray
        Contiguous, shape of ``x``.
    """
    if dtype == "uint8":
        coded = denormalise(x, mean, std).mul(255).round().to(torch.uint8)
    else:
        coded = x.to(getattr(torch, dtype))
    return np.ascontiguousarray(coded.detach().cpu().numpy())


def decode(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Undo `encode`: float32 (N, C, H, W) in normalised pixel space, whatever was sent."""
    if images.dtype == torch.uint8:
        return normalise(images, mean, std)
    return images.to(torch.float32)
