"""The pool of synthetic images that every client trains on beside its own."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.payload import Group
from fedsyn_flwr.state import VersionedStore


@dataclass(frozen=True)
class Pool:
    """Labelled synthetic images: float (N, C, H, W) in normalised pixel space, int64 (N,)."""

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

    @staticmethod
    def load(store: VersionedStore, version: int) -> "Pool":
        """The node's copy of a version.

        Raises
        ------
        UserError
            If this node never received it.
        """
        arrays = store.load(version)
        if arrays is None:
            raise UserError(f"synthetic pool {version} is not on this node: state was lost")
        return Pool(arrays["images"], arrays["labels"])


class PoolSampler:
    """Batches from a pool, without replacement until it is used up, then reshuffled."""

    def __init__(self, pool: Pool, generator: torch.Generator, data: ResidentData) -> None:
        self.images = data.laid_out(torch.from_numpy(pool.images))
        self.labels = torch.from_numpy(pool.labels).to(self.images.device)
        self.generator = generator
        self.order = torch.empty(0, dtype=torch.int64)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        """n images and labels."""
        while len(self.order) < n:
            fresh = torch.randperm(len(self.labels), generator=self.generator)
            self.order = torch.cat([self.order, fresh])
        chosen, self.order = self.order[:n], self.order[n:]
        chosen = chosen.to(self.images.device)
        return self.images[chosen], self.labels[chosen]


def problem_with(part: Group, shape: tuple[int, ...], classes: int, limit: int) -> str | None:
    """Why a client's contribution cannot be pooled; None if it can.

    Parameters
    ----------
    part : Group
        ``images`` and ``labels`` as received.
    shape : tuple
        (C, H, W) of the run's images.
    classes, limit : int
        Labels must lie in [0, classes); more than ``limit`` images are refused.
    """
    images, labels = part["images"], part["labels"]
    if images.shape[1:] != shape or labels.shape != images.shape[:1]:
        return f"images {images.shape} with labels {labels.shape}, expected (n, {shape}) and (n,)"
    if len(labels) > limit:
        return f"{len(labels)} images, at most {limit} allowed"
    if not np.issubdtype(labels.dtype, np.integer):
        return f"labels of type {labels.dtype}, expected integers"
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        return f"labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}"
    if not np.isfinite(images).all():
        return "images with NaN or infinite pixels"
    return None
