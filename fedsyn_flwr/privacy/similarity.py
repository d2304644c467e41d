"""How much synthetic images give away of the real ones they were made from.

All of it is computed by the client that has the real images; only the numbers leave it. Images
are pixels in [0, 1]; values outside are clamped.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

MAX_PSNR = 100.0


def psnr(x: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, 10·log10(1 / MSE).

    Parameters
    ----------
    x, reference : Tensor
        Pixels, shape (B, C, H, W).

    Returns
    -------
    Tensor
        Shape (B,); higher is more alike, 100 dB at most.
    """
    from torchmetrics.functional.image import peak_signal_noise_ratio  # seconds: it all comes along

    ratio = peak_signal_noise_ratio(
        x.clamp(0, 1), reference.clamp(0, 1), data_range=1.0, reduction="none", dim=(1, 2, 3)
    )
    return ratio.clamp(max=MAX_PSNR)


def ssim(x: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity of each image, shape (B,), 1 for equal images.

    The Gaussian window is the usual one, 11 pixels wide with σ = 1.5, on images of at least 11
    pixels. Smaller images get the largest odd window that fits, with σ in proportion: 7 pixels
    and 0.9 on 8 x 8. Values of different windows do not compare.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    radius = max(1, min(5, (min(x.shape[2:]) - 1) // 2))
    values = structural_similarity_index_measure(
        x.clamp(0, 1),
        reference.clamp(0, 1),
        sigma=1.5 * radius / 5,  # torchmetrics makes the window 2·int(3.5 σ + 0.5) + 1 wide
        data_range=1.0,
        reduction="none",
    )
    return cast(Tensor, values).reshape(len(x))


def rms(x: Tensor, reference: Tensor) -> Tensor:
    """Root mean square difference of the pixels of each image, shape (B,), in [0, 1]."""
    return (x.clamp(0, 1) - reference.clamp(0, 1)).square().mean(dim=(1, 2, 3)).sqrt()


def nearest(synthetic: Tensor, real: Iterable[Tensor], paired: Tensor) -> tuple[Tensor, Tensor]:
    """The real image nearest to each synthetic one, and whether it is the paired one.

    Parameters
    ----------
    synthetic : Tensor
        Pixels or features, one row per image, shape (m, d).
    real : iterable of Tensor
        The same of all n real images of a client, in pieces of shape (·, d).
    paired : Tensor
        Which of the n each synthetic image was made from, int64 (m,), or which M of them, (m, M).

    Returns
    -------
    tuple
        Index of the nearest, int64 (m,); whether none is nearer than a paired one, bool (m,).
        A guess would be right for M in n.
    """
    distances = torch.cat([torch.cdist(synthetic, piece) for piece in real], dim=1)
    least = distances.min(dim=1)
    own = distances.gather(1, paired.to(distances.device).view(len(synthetic), -1))
    return least.indices, own.min(dim=1).values <= least.values


def likeness(synthetic: Tensor, real: Tensor) -> dict[str, float]:
    """PSNR and SSIM of paired images (B, C, H, W): mean, 95th percentile and maximum over B."""
    numbers = {}
    for name, values in (("psnr", psnr(synthetic, real)), ("ssim", ssim(synthetic, real))):
        numbers[f"privacy/{name}_mean"] = float(values.mean())
        numbers[f"privacy/{name}_p95"] = float(values.quantile(0.95))
        numbers[f"privacy/{name}_max"] = float(values.max())
    return numbers
