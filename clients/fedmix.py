"""FedMix (Yoon et al., ICLR 2021, arXiv 2107.00233), client half: averages, and their mixing in."""

from collections.abc import Callable, Mapping

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.numpy_client import Metrics
from fedsyn_flwr.client.pool_client import PoolClient, PoolParams
from fedsyn_flwr.client.training import Batch, Loss
from fedsyn_flwr.compute.cuda_graphs import replayable
from fedsyn_flwr.config import SETTINGS, Count, Share
from fedsyn_flwr.messages.payload import Groups
from fedsyn_flwr.synthesis import mixing


@dataclass(frozen=True, config=SETTINGS)
class FedMixParams(PoolParams):
    """FedMix's and NaiveMix's keys.

    ``fedmix_mean_size`` is M_k: how many images an average is made of; 1 sends real images.
    ``fedmix_lambda`` is λ: 0 regresses to FedAvg exactly; the paper has 0.05 for CIFAR-10 and 0.1
    for CIFAR-100.
    """

    fedmix_mean_size: Count
    fedmix_lambda: Share

    @property
    def uses_pool(self) -> bool:
        """Not without any weight."""
        return self.fedmix_lambda > 0


class FedMixClient(PoolClient):
    """Algorithm 1 of FedMix, the client's lines."""

    params: FedMixParams
    phases: Mapping[str, str] = {**PoolClient.phases, "means": "send_means"}
    mixed: Callable[..., mixing.Mixed] = staticmethod(mixing.fedmix)

    @replayable
    def loss(self, batch: Batch) -> Loss:
        """Each sample with an average of its own from the pool."""
        if batch.shared_x is None:
            return super().loss(batch)
        each = self.mixed(self.flat.module, *batch, self.params.fedmix_lambda)
        return Loss(each.objective.mean(), each.cross_entropy.mean())

    # ---- before round 1

    def send_means(self, groups: Groups) -> tuple[Groups, Metrics]:
        """Averages of this client's images and labels, and what they give away."""
        meter = self.meter("means")
        n, size = len(self.indices), self.params.fedmix_mean_size
        members = mixing.mean_groups(n, size, self.generator("means"))
        answer = self.contribution(*self.averages(members))
        return answer, {**meter.metrics(), **self.given_away(members, answer["synthetic"])}

    def averages(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Images (q, C, H, W) and labels (q, classes) of the groups (q, M) of positions."""
        data = self.worker.data
        x = torch.zeros(len(members), *data.shape, device=self.worker.device)
        y = torch.zeros(len(members), data.num_classes, device=self.worker.device)
        for i, group in enumerate(self.indices[members]):
            x[i] = data.x(group).mean(dim=0)
            y[i] = mixing.mean_label(data.y(group), data.num_classes)
        return x, y
