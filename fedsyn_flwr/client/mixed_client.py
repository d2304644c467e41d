"""Training on real and synthetic samples, HFMDS-FL (arXiv 2308.04761), eq. (6)."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.numpy_client import Step
from fedsyn_flwr.client.pool_client import PoolClient, PoolParams
from fedsyn_flwr.client.training import Batch, Loss
from fedsyn_flwr.compute.cuda_graphs import replayable
from fedsyn_flwr.config import SETTINGS, Count, Share


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


class MixedClient(PoolClient):
    """L_k = α·E_{D_k} CE + (1-α)·E_{D_syn} CE, once there is a pool D_syn; CE before that."""

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
