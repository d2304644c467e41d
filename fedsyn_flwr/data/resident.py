"""Images that stay in memory as tensors, and whole-batch operations on them."""

import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsyn_flwr.compute.device import to_device
from fedsyn_flwr.data.cache import ImageSet


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Map uint8 (B, C, H, W) to float32 (images / 255 - mean) / std, per channel."""
    x = images.to(torch.float32).div_(255)
    return x.sub_(_per_channel(mean, x)).div_(_per_channel(std, x))


def denormalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Undo :func:`normalise` up to the factor 255: pixels in [0, 1], clamped (B, C, H, W)."""
    return (x * _per_channel(std, x) + _per_channel(mean, x)).clamp(0, 1)


class ResidentData:
    """A split as resident tensors.

    On the CPU the images are the cache file itself, mapped and shared by all processes; on CUDA
    they are copied to the device once.

    Parameters
    ----------
    image_set : ImageSet
        N images.
    mean, std : sequence of float
        Per channel, in [0, 1] units.
    device : str or torch.device
        Where batches are wanted.
    channels_last : bool
        Memory format of every batch handed out.
    """

    def __init__(
        self,
        image_set: ImageSet,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device,
        channels_last: bool = True,
    ) -> None:
        self.mean, self.std = tuple(mean), tuple(std)
        self.images = _as_tensor(image_set.images).to(device)
        self.labels = torch.from_numpy(np.array(image_set.labels, dtype=np.int64)).to(device)
        self.num_classes = len(image_set.class_names)
        self.shape = (self.images.shape[1], self.images.shape[2], self.images.shape[3])
        self._channels_last = channels_last

    def __len__(self) -> int:
        return len(self.labels)

    def x(self, indices: Tensor) -> Tensor:
        """Return the normalised images, float32 (B, C, H, W), of int64 `indices` (B,)."""
        picked = self.images.index_select(0, to_device(indices, self.images.device))
        return self.laid_out(normalise(picked, self.mean, self.std))

    def laid_out(self, x: Tensor) -> Tensor:
        """Bring other images (B, C, H, W) to this data's device and memory format."""
        return _laid_out(to_device(x, self.images.device), self._channels_last)

    def y(self, indices: Tensor) -> Tensor:
        """Return the labels, int64 (B,), of int64 `indices` (B,)."""
        return self.labels.index_select(0, to_device(indices, self.labels.device))

    def subset(self, indices: Tensor) -> "Subset":
        """Normalise a partition once; the caller keeps the result (4 bytes per value)."""
        return Subset(self.x(indices), self.y(indices))


class Subset:
    """A partition with its images already normalised.

    Parameters
    ----------
    x : Tensor
        float32 (n, C, H, W), contiguous or channels_last; batches keep its memory format.
    y : Tensor
        int64 (n,).
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self._channels_last = not x.is_contiguous()

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return x (B, C, H, W) and y (B,) of int64 `indices` (B,) in [0, n)."""
        x = _pick(self.x, indices) if self._channels_last else self.x.index_select(0, indices)
        return x, self.y.index_select(0, indices)


def augment(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Crop and flip every image of a batch at random, as one gather.

    Each image is padded by `padding` zeros on all sides (zero in normalised space: the mean
    colour), cropped back at its own offset and mirrored left to right with probability 1/2.

    Parameters
    ----------
    x : Tensor
        (B, C, H, W) on any device.
    generator : torch.Generator
        The only source of randomness; a CPU generator gives the same crops on every device.

    Returns
    -------
    Tensor
        Same shape and type as `x`, channels_last strides.
    """
    b, c, h, w = x.shape
    rows, columns = (to_device(i, x.device) for i in _crops(b, h, w, padding, generator))
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding))
    wide = w + 2 * padding
    image = torch.arange(b, device=x.device)[:, None, None] * ((h + 2 * padding) * wide)
    pixel = image + rows[:, :, None] * wide + columns[:, None, :]
    # Gathering pixels from a flat list is twice as fast as indexing three dimensions.
    picked = padded.reshape(-1, c).index_select(0, pixel.flatten())
    return picked.view(b, h, w, c).permute(0, 3, 1, 2)


def adapt(images: Tensor, channels: int, size: int) -> Tensor:
    """Bring images to another number of channels and another size, for cross-domain runs.

    Parameters
    ----------
    images : Tensor
        uint8 (N, C, H, W), C = 1 or 3.
    channels : {1, 3}
        Grey is repeated to RGB; RGB becomes grey by ITU-R 601 luma.
    size : int
        New height and width (bilinear, antialiased).

    Returns
    -------
    Tensor
        uint8 (N, channels, size, size).
    """
    from torchvision.transforms.v2 import functional as V

    if channels not in (1, 3) or images.shape[1] not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, not {images.shape[1]} -> {channels}")
    if images.shape[1] < channels:
        images = images.expand(-1, channels, -1, -1)
    elif images.shape[1] > channels:
        images = V.rgb_to_grayscale(images)
    if tuple(images.shape[2:]) != (size, size):
        images = V.resize(images, [size, size], antialias=True)
    return images.contiguous()


def _crops(
    b: int, h: int, w: int, padding: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw the padded rows (B, H) and columns (B, W) that each output pixel is taken from."""
    device = generator.device
    top, left = torch.randint(
        0, 2 * padding + 1, (2, b, 1), generator=generator, device=device
    ).unbind()
    flip = torch.randint(0, 2, (b, 1), generator=generator, device=device).bool()
    across = torch.arange(w, device=device)
    mirrored = torch.where(flip, w - 1 - across, across)
    return torch.arange(h, device=device) + top, mirrored + left


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return _constants(tuple(values), like.dtype, like.device)


@lru_cache(maxsize=32)
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Shape (1, C, 1, 1); made once, as a copy to a device waits for it. Not to be changed."""
    return torch.tensor(values, dtype=dtype, device=device).view(1, -1, 1, 1)


def _laid_out(x: Tensor, channels_last: bool) -> Tensor:
    return x.contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


def _pick(x: Tensor, indices: Tensor) -> Tensor:
    """Select images of a channels_last tensor; index_select alone would return contiguous ones."""
    return x.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)


def _as_tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # The map is read-only and so is every use of the tensor; a copy would cost N images.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
