"""What the data-sharing methods have in common on a client: a pool to train on beside its own."""

from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.numpy_client import FedClient, Metrics, Step, as_numpy
from fedsyn_flwr.client.observer import train_observer
from fedsyn_flwr.client.pool_store import LocalPool, PoolSampler, keep_pool, open_pool
from fedsyn_flwr.client.training import Batch, LocalResult, Loss
from fedsyn_flwr.compute.cuda_graphs import replayable
from fedsyn_flwr.config import SETTINGS, Count, CountOrZero, Share
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


class PooledClient(FedClient):
    """A client that contributes images and draws from everybody's."""

    params: Any
    pool: PoolSampler | None

    def begin_round(self, groups: Groups) -> None:
        """Take the pool, new or kept."""
        pool = self.receive_pool(groups) if self.params.uses_pool else None
        self.pool = PoolSampler(pool, self.generator("pool"), self.worker.data) if pool else None

    def fetch(self, chosen: Tensor) -> Batch:
        """With as many images from the pool, where there is one."""
        batch = super().fetch(chosen)
        return batch if self.pool is None else Batch(*batch[:2], *self.pool.draw(len(chosen)))

    def receive_pool(self, groups: Groups) -> LocalPool | None:
        """The pool of the version the server names: from this message, else this node's copy."""
        version, store = self.round.pool, self.node.pool()
        if not version:
            return None
        if "synthetic" in groups:
            keep_pool(store, version, groups["synthetic"], self.round.settled)
        return open_pool(store, version, self.worker.device)

    def step_kind(self) -> bool:
        """Whether shared images are trained on, too."""
        return self.pool is not None

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """Say which pool it was."""
        return {}, {"pool-version": self.round.pool}

    def contribution(self, images: Tensor, labels: Tensor) -> Groups:
        """What is sent to the server: normalised images (n, C, H, W) with their labels."""
        data = self.worker.data
        coded = encode(images, self.params.synthetic_dtype, data.mean, data.std)
        return {"synthetic": {"images": coded, "labels": as_numpy(labels)}}

    def report(self, positions: Tensor, sent: Group) -> Metrics:
        """How much the images, as they were sent, give away of this client's real ones."""
        worker, epochs, meter = self.worker, self.params.privacy_epochs, self.meter("privacy")
        synthetic = decode(torch.from_numpy(sent["images"]), worker.data.mean, worker.data.std)
        observer = None
        if epochs:
            store = self.node.client(f"{self.owner}-observer")
            observer = train_observer(worker, self.partition, epochs, store)
        laid_out = worker.data.laid_out(synthetic)
        size = worker.settings.output.eval_batch_size
        numbers = privacy_report(worker.data, self.indices, positions, laid_out, size, observer)
        return {**numbers, "client_seconds/privacy": meter.seconds()}


@dataclass(frozen=True, config=SETTINGS)
class MixedParams(PoolParams):
    """Keys of HFMDS-FL's objective (6): α, 1 regresses to FedAvg exactly; one or two passes.

    ``synthesis_per_client`` is B_g, how many images a client contributes.
    """

    hfmds_alpha: Share
    hfmds_joint_batch: bool
    synthesis_per_client: Count

    @property
    def uses_pool(self) -> bool:
        """Not where the real data have all the weight."""
        return self.hfmds_alpha < 1


class MixedClient(PooledClient):
    """Training on real and synthetic samples, HFMDS-FL (arXiv 2308.04761), eq. (6)."""

    params: MixedParams

    @replayable
    def objective(self, step: Step) -> Tensor:
        """α·CE(real) + (1-α)·CE(synthetic), each over as many samples."""
        batch = step.batch
        if batch.shared_x is None or batch.shared_y is None:
            return step.cross_entropy
        synthetic = F.cross_entropy(self.flat.module(batch.shared_x), batch.shared_y)
        return self.mix(step.cross_entropy, synthetic)

    @replayable
    def loss(self, batch: Batch) -> Loss:
        """With ``hfmds-joint-batch``: both halves in one forward pass."""
        x, y = batch.shared_x, batch.shared_y
        if not self.params.hfmds_joint_batch or x is None or y is None:
            return super().loss(batch)
        n = len(batch.y)
        joint = self.forward(Batch(torch.cat([batch.x, x]), torch.cat([batch.y, y])))
        real = F.cross_entropy(joint.logits[:n], batch.y)
        watched = self.watch(Step(batch, joint.map[:n], joint.features[:n], joint.logits[:n], real))
        return Loss(self.mix(real, F.cross_entropy(joint.logits[n:], y)), real, watched)

    def mix(self, real: Tensor, synthetic: Tensor) -> Tensor:
        """The weighted sum of the two."""
        alpha = self.params.hfmds_alpha
        return alpha * real + (1 - alpha) * synthetic

    def choose(self, generator: torch.Generator) -> Tensor:
        """Positions of B_g of the client's samples without replacement, of all if it has fewer."""
        order = torch.randperm(len(self.indices), generator=generator)
        return order[: self.params.synthesis_per_client]
