"""The synthetic pool on a node: one copy per machine, drawn from by every client on it."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr.client.state import VersionedStore
from fedsyn_flwr.compute.device import to_device
from fedsyn_flwr.data import ResidentData
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.rng import Reshuffled
from fedsyn_flwr.synthesis.encoding import decode


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
