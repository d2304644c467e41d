"""FedMMD (Yao et al., "Two-Stream Federated Learning", VCIP 2018): CE + λ·MMD² of features."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.numpy_client import FedClient, Step
from fedsyn_flwr.compute.cuda_graphs import replayable
from fedsyn_flwr.config import SETTINGS, NonNegative
from fedsyn_flwr.losses import mmd
from fedsyn_flwr.messages.payload import Groups


@dataclass(frozen=True, config=SETTINGS)
class FedMMDParams:
    """FedMMD's key.

    ``fedmmd_lambda`` is λ: 0 regresses to FedAvg exactly, useful up to about 1.
    """

    fedmmd_lambda: NonNegative


class FedMMDClient(FedClient):
    """Local training that keeps the features' distribution near the global model's."""

    params: FedMMDParams

    def begin_round(self, groups: Groups) -> None:
        """Freeze the received model."""
        if self.params.fedmmd_lambda:
            self.reference = self.frozen(0, groups["model"])

    @replayable
    def objective(self, step: Step) -> Tensor:
        """CE + λ·MMD²(z_local, z_global) over the batch."""
        if not self.params.fedmmd_lambda:
            return step.cross_entropy
        with torch.no_grad():
            z_global = self.reference.forward_features(step.batch.x)
        return step.cross_entropy + self.params.fedmmd_lambda * mmd(step.features, z_global)
