"""The pool of synthetic images that every client trains on beside its own."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.synthesis.encoding import decode

FARTHEST = 1000.0
"""How many standard deviations from the mean a pixel may lie: an inversion by Adam moves one by its
rate at most in each step, 50 in 500 steps at 0.1; 1e30 would make NaN of everybody's training."""


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
    if images.dtype != np.uint8 and len(images) and np.abs(images).max() > FARTHEST:
        return f"pixels up to {np.abs(images).max():g}, at most {FARTHEST:g} deviations allowed"
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
