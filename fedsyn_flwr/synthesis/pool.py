"""The pool of synthetic images that every client trains on beside its own."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.device import to_device
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.payload import Group
from fedsyn_flwr.rng import Reshuffled
from fedsyn_flwr.state import VersionedStore
from fedsyn_flwr.synthesis.encoding import decode

# ---- on the server


@dataclass(frozen=True)
class Pool:
    """Labelled images: encoded (N, C, H, W); int64 (N,), or shares of classes (N, classes)."""

    images: np.ndarray
    labels: np.ndarray

    def arrays(self) -> Group:
        """As a payload group."""
        return {"images": self.images, "labels": self.labels}

    @staticmethod
    def merge(parts: list[Group]) -> "Pool | None":
        """One pool of all the clients' parts, in the order given; None without any image."""
        filled = [part for part in parts if len(part["labels"])]
        if not filled:
            return None
        return Pool(
            np.concatenate([part["images"] for part in filled]),
            np.concatenate([part["labels"] for part in filled]),
        )

    def limited(self, size: int, generator: np.random.Generator) -> "Pool":
        """At most ``size`` images, as equally many of each (main) class as there are; 0 = all.

        Which ones is drawn from ``generator``; their order stays.
        """
        if not size or size >= len(self.labels):
            return self
        classes = hard(self.labels)
        quotas = class_quotas(np.bincount(classes), size)
        members = [np.flatnonzero(classes == c) for c in range(len(quotas))]
        drawn = [
            generator.choice(rows, quota, replace=False)
            for rows, quota in zip(members, quotas, strict=True)
        ]
        kept = np.sort(np.concatenate(drawn))
        return Pool(self.images[kept], self.labels[kept])


class PoolImages:
    """A pool as a set of images without an order, for the server's own refinement.

    ``labels`` (N,) are those that the images were made for.
    """

    def __init__(self, pool: Group, data: ResidentData) -> None:
        self.images, self.data = torch.from_numpy(pool["images"]), data
        self.labels = torch.from_numpy(hard(pool["labels"])).to(data.labels.device)

    def __len__(self) -> int:
        return len(self.images)

    def x(self, indices: Tensor) -> Tensor:
        """Normalised float32 images of ``indices`` (B,)."""
        picked = self.images.index_select(0, indices)
        return self.data.laid_out(decode(picked, self.data.mean, self.data.std))


def hard(labels: np.ndarray) -> np.ndarray:
    """Each image's class, int64 (N,): where labels are shares, the largest; the first of equals."""
    return labels if labels.ndim == 1 else labels.argmax(axis=1)


def class_quotas(counts: np.ndarray, size: int) -> list[int]:
    """How many of each class to keep: ``size`` in all, as equal as the counts allow.

    Classes give all they have or one of two neighbouring numbers, the larger one where there are
    more images. ``counts`` (C,) must sum to ``size`` at least.
    """
    quotas, left = [0] * len(counts), size
    for rank, c in enumerate(np.argsort(counts, kind="stable")):
        quotas[c] = min(int(counts[c]), left // (len(counts) - rank))
        left -= quotas[c]
    return quotas


def problem_with(
    part: Group, shape: tuple[int, ...], classes: int, limit: int, dtype: str, soft: bool = False
) -> str | None:
    """Why a client's contribution cannot be pooled; None if it can.

    Parameters
    ----------
    part : Group
        ``images`` and ``labels`` as received.
    shape : tuple
        (C, H, W) of the run's images.
    classes, limit : int
        Labels must be int64 in [0, classes); more than ``limit`` images are refused.
    dtype : str
        The run's ``synthetic-dtype``.
    soft : bool
        Labels are shares of the classes instead, float32 (n, classes).
    """
    missing = [name for name in ("images", "labels") if name not in part]
    if missing:
        return f"no {' and no '.join(missing)}"
    images, labels = part["images"], part["labels"]
    expected = (*images.shape[:1], classes) if soft else images.shape[:1]
    if images.shape[1:] != shape or labels.shape != expected:
        return f"images {images.shape} with labels {labels.shape}, expected (n, {shape}) and (n,)"
    if len(labels) > limit:
        return f"{len(labels)} images, at most {limit} allowed"
    if images.dtype != dtype:
        return f"images of type {images.dtype}, expected {dtype}"
    if not np.isfinite(images).all():
        return "images with NaN or infinite pixels"
    return _problem_with_shares(labels) if soft else _problem_with_classes(labels, classes)


def _problem_with_classes(labels: np.ndarray, classes: int) -> str | None:
    if labels.dtype != np.int64:
        return f"labels of type {labels.dtype}, expected int64"
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        return f"labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}"
    return None


def _problem_with_shares(labels: np.ndarray) -> str | None:
    if labels.dtype != np.float32:
        return f"labels of type {labels.dtype}, expected float32"
    if not ((labels >= 0).all() and np.allclose(labels.sum(axis=1), 1, atol=1e-5)):
        return "labels that are no shares of the classes: each below 0 or not 1 in sum"
    return None


# ---- on a node


class LocalPool(NamedTuple):
    """A pool where it is used: encoded images (N, C, H, W) and labels as in `Pool`."""

    images: Tensor
    labels: Tensor


def keep_pool(store: VersionedStore, version: int, arrays: Group, settled: int) -> None:
    """Store a received pool, unless another client of this machine already did.

    The contents are compared, too: a run that died between a synthesis and its checkpoint repeats
    the synthesis, and a client that failed then may answer now.
    """
    if not (version in store.versions() and _equal(store.mapped(version), arrays)):
        store.save(version, arrays)
        store.settle(settled)


def open_pool(store: VersionedStore, version: int, device: torch.device) -> LocalPool:
    """This node's copy of a version, opened once per process.

    On the CPU it is the file itself, mapped and shared by all processes of the machine; on CUDA
    it is copied to the device once.

    Raises
    ------
    UserError
        If this node never received it.
    """
    try:
        stat = store.path(version).stat()
    except FileNotFoundError:
        raise UserError(f"synthetic pool {version} is not on this node: state was lost") from None
    return _opened(store.folder, version, (stat.st_ino, stat.st_mtime_ns), device)


@lru_cache(maxsize=1)
def _opened(folder: Path, version: int, stamp: tuple[int, int], device: torch.device) -> LocalPool:
    """The pool of a file; ``stamp`` tells it from another one that took its place."""
    arrays = VersionedStore(folder).mapped(version)
    images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    return LocalPool(images.to(device), labels.to(device))


def _equal(ours: Group, theirs: Group) -> bool:
    same = ours.keys() == theirs.keys()
    return same and all(
        ours[name].dtype == theirs[name].dtype and np.array_equal(ours[name], theirs[name])
        for name in ours
    )


class PoolSampler:
    """Batches from a pool, without replacement until it is used up, then reshuffled."""

    def __init__(self, pool: LocalPool, generator: torch.Generator, data: ResidentData) -> None:
        self.pool, self.data = pool, data
        self.order = Reshuffled(len(pool.labels), generator)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        """n normalised float32 images and their labels."""
        chosen = to_device(self.order.take(n), self.pool.labels.device)
        # Decoded here and nowhere else, so that all processes share the stored, smaller images.
        picked = self.pool.images.index_select(0, chosen)
        x = decode(picked, self.data.mean, self.data.std)
        return self.data.laid_out(x), self.pool.labels.index_select(0, chosen)
