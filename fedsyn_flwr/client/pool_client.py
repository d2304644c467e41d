"""The client of every method that shares images: it draws from a pool, and adds to it."""

from __future__ import annotations

from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.numpy_client import FedClient, Metrics, as_numpy
from fedsyn_flwr.client.observer import train_observer
from fedsyn_flwr.client.pool_store import PoolSampler, keep_pool, open_pool
from fedsyn_flwr.client.training import Batch
from fedsyn_flwr.config import SETTINGS, CountOrZero
from fedsyn_flwr.messages.payload import Group, Groups
from fedsyn_flwr.privacy.audit import privacy_report
from fedsyn_flwr.synthesis.encoding import DType, decode, encode


@dataclass(frozen=True, config=SETTINGS)
class PoolParams:
    """Keys of every method that shares images; ``pool_max`` and ``privacy_epochs`` are off at 0."""

    synthetic_dtype: DType
    pool_max: CountOrZero
    privacy_report: bool
    privacy_epochs: CountOrZero

    @property
    def uses_pool(self) -> bool:
        """Whether clients train on the pool at all; if not, nobody is sent it."""
        return True


class PoolClient(FedClient):
    """A client that draws from everybody's images, and adds to them.

    Attributes
    ----------
    pool : PoolSampler or None
        Batches of the pool; None where there is none yet, or the keys make no use of it.
    """

    params: Any
    pool: PoolSampler | None

    def begin_round(self, groups: Groups) -> None:
        """Take the pool that the server names, from this message, else from this node's copy."""
        self.pool, version = None, self.round.pool
        if not version or not self.params.uses_pool:
            return
        store = self.worker.state(self.round.run).pool()
        if "synthetic" in groups:
            keep_pool(store, version, groups["synthetic"], self.round.settled)
        images = open_pool(store, version, self.worker.device)
        self.pool = PoolSampler(images, self.generator("pool"), self.worker.data)

    def fetch(self, chosen: Tensor) -> Batch:
        """With as many samples from the pool, where there is one."""
        batch = super().fetch(chosen)
        return batch if self.pool is None else Batch(*batch[:2], *self.pool.draw(len(chosen)))

    def step_kind(self) -> bool:
        """Whether shared images are trained on, too."""
        return self.pool is not None

    # ---- what a method may use

    def contribution(self, images: Tensor, labels: Tensor) -> Groups:
        """What is sent to the server: normalised images (n, C, H, W) with their labels."""
        data = self.worker.data
        coded = encode(images, self.params.synthetic_dtype, data.mean, data.std)
        return {"synthetic": {"images": coded, "labels": as_numpy(labels)}}

    def given_away(self, positions: Tensor, sent: Group) -> Metrics:
        """How much images, as they were sent, give away of the client's real ones, where asked for.

        ``positions`` are those of the real images that each was made from: (m,) or (m, M).
        """
        if not self.params.privacy_report or not len(sent["labels"]):
            return {}
        worker, epochs, meter = self.worker, self.params.privacy_epochs, self.meter("privacy")
        synthetic = decode(torch.from_numpy(sent["images"]), worker.data.mean, worker.data.std)
        observer = None
        if epochs:
            owner = worker.owner(self.partition)
            store = worker.state(self.round.run).client(f"{owner}-observer")
            observer = train_observer(worker, self.partition, epochs, store)
        size, laid_out = worker.settings.output.eval_batch_size, worker.data.laid_out(synthetic)
        numbers = privacy_report(worker.data, self.indices, positions, laid_out, size, observer)
        return {**numbers, "client_seconds/privacy": meter.seconds()}
