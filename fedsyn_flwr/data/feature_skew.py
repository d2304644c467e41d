"""Feature skew: each client's images come from a camera of its own.

What a client's camera does depends on the seed and the client's number, and is the same for all its
images. It is done once per machine and kept beside the decoded images.
"""

import hashlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsyn_flwr.data.cache import ImageSet, Rows, cached
from fedsyn_flwr.data.library_partitioner import Indices
from fedsyn_flwr.rng import derive

NONE = "none"
PACKAGES = ("numpy", "torchvision")
"""Whose generators and algorithms the images depend on."""

Pixels = NDArray[np.uint8]


def skewed(
    train: ImageSet,
    partitions: list[Indices],
    kind: str,
    strength: float,
    *,
    seed: int,
    root: Path | None = None,
) -> ImageSet:
    """The training images as the clients' cameras take them.

    Parameters
    ----------
    train : ImageSet
        Images uint8 (N, C, H, W); labels, groups and names stay.
    partitions : list of int64 arrays
        The rows of each of K clients, disjoint; rows of nobody stay as they are.
    kind : {"none", "noise", "rotation", "colour"}
        - noise: Gaussian, its standard deviation from 0 for the first client to `strength` (of
          pixels in [0, 1]) for the last, evenly, as in NIID-Bench (Li et al. 2022, where it is the
          variance that grows).
        - rotation: by one angle, uniform within ±180° · `strength`; bilinear, corners black.
        - colour: each channel times a factor of its own, uniform in 1 ± `strength`; on grey images
          that is brightness.
    strength : float
        In (0, 1].
    seed : int
        The run's.
    root : Path or None
        Cache folder; None means `default_cache_dir`.

    Raises
    ------
    UserError
        When the cache folder cannot be written.
    """
    if kind == NONE:
        return train
    digest = hashlib.sha256(np.ascontiguousarray(train.images).data)
    for array in (train.labels, *partitions):
        digest.update(f"{array.shape}".encode() + array.tobytes())
    identity = [digest.hexdigest(), kind, strength, seed, [version(name) for name in PACKAGES]]

    def rows() -> Rows:
        images = iter(_taken(train.images, partitions, CAMERAS[kind], strength, seed))
        return Rows(images, train.labels, train.class_names, "feature-skew", train.groups)

    return cached(f"{kind}-skew", identity, rows, root)


def _taken(
    images: Pixels, partitions: list[Indices], camera: "Camera", strength: float, seed: int
) -> Pixels:
    taken = np.array(images)
    for k, rows in enumerate(partitions):
        rng = np.random.default_rng(derive(seed, k, "feature-skew"))
        place = k / max(len(partitions) - 1, 1)
        if len(rows):
            taken[rows] = camera(taken[rows], place, strength, rng)
    return taken


def _noise(images: Pixels, place: float, strength: float, rng: np.random.Generator) -> Pixels:
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    return _rounded(images + np.float32(255 * strength * place) * noise)


def _rotation(images: Pixels, place: float, strength: float, rng: np.random.Generator) -> Pixels:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import rotate

    angle = float(rng.uniform(-180, 180)) * strength
    turned: Any = rotate(torch.from_numpy(images), angle, InterpolationMode.BILINEAR)
    found: Pixels = turned.numpy()
    return found


def _colour(images: Pixels, place: float, strength: float, rng: np.random.Generator) -> Pixels:
    gains = 1 + strength * rng.uniform(-1, 1, (1, images.shape[1], 1, 1))
    return _rounded(images.astype(np.float32) * gains.astype(np.float32))


def _rounded(pixels: NDArray[np.float32]) -> Pixels:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


Camera = Callable[[Pixels, float, float, np.random.Generator], Pixels]
CAMERAS: dict[str, Camera] = {"noise": _noise, "rotation": _rotation, "colour": _colour}
"""Kind → (images (n, C, H, W), place of the client in [0, 1], strength, its numbers) → images."""
