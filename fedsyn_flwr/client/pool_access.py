"""A client's two ways to the synthetic pool: drawing from it, and adding to it."""

from __future__ import annotations

from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.numpy_client import FedClient, Metrics, as_numpy
from fedsyn_flwr.client.observer import train_observer
from fedsyn_flwr.client.pool_store import PoolSampler, keep_pool, open_pool
from fedsyn_flwr.compute.cost_meter import Meter
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


def sampler(client: FedClient, groups: Groups) -> PoolSampler | None:
    """Batches of the pool that the server names, from this message, else from this node's copy.

    None where there is no pool yet, or the method's keys make no use of it.
    """
    round, store = client.round, client.worker.state(client.round.run).pool()
    if not round.pool or not client.params.uses_pool:
        return None
    if "synthetic" in groups:
        keep_pool(store, round.pool, groups["synthetic"], round.settled)
    pool = open_pool(store, round.pool, client.worker.device)
    return PoolSampler(pool, client.generator("pool"), client.worker.data)


def contribution(client: FedClient, images: Tensor, labels: Tensor) -> Groups:
    """What is sent to the server: normalised images (n, C, H, W) with their labels."""
    data = client.worker.data
    coded = encode(images, client.params.synthetic_dtype, data.mean, data.std)
    return {"synthetic": {"images": coded, "labels": as_numpy(labels)}}


def given_away(client: FedClient, positions: Tensor, sent: Group) -> Metrics:
    """How much images, as they were sent, give away of the client's real ones, where it is asked.

    ``positions`` are those of the real images that each was made from: (m,) or (m, M).
    """
    params: Any = client.params
    if not params.privacy_report or not len(sent["labels"]):
        return {}
    worker, meter = client.worker, Meter("privacy")
    synthetic = decode(torch.from_numpy(sent["images"]), worker.data.mean, worker.data.std)
    observer = None
    if params.privacy_epochs:
        store = worker.state(client.round.run).client(f"{worker.owner(client.partition)}-observer")
        observer = train_observer(worker, client.partition, params.privacy_epochs, store)
    numbers = privacy_report(
        worker.data,
        client.indices,
        positions,
        worker.data.laid_out(synthetic),
        worker.settings.output.eval_batch_size,
        observer,
    )
    return {**numbers, "client_seconds/privacy": meter.seconds()}
