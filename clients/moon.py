"""MOON (Li et al., arXiv 2103.16257): features near the global model's, far from one's own past."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.numpy_client import FedClient, Metrics, Step
from fedsyn_flwr.client.training import LocalResult
from fedsyn_flwr.compute.cuda_graphs import replayable
from fedsyn_flwr.config import SETTINGS, NonNegative, Positive
from fedsyn_flwr.losses import contrastive
from fedsyn_flwr.messages.payload import Groups
from fedsyn_flwr.models import SplitModel


@dataclass(frozen=True, config=SETTINGS)
class MOONParams:
    """MOON's keys.

    ``moon_mu`` is μ: 0 regresses to FedAvg exactly; the paper uses 5 for CIFAR-10 and 1 for
    CIFAR-100. ``moon_temperature`` is T, 0.5 in the paper.
    """

    moon_mu: NonNegative
    moon_temperature: Positive


class MOONClient(FedClient):
    """Local training with the model-contrastive loss.

    In a client's first round there is no previous model, and the loss is the cross-entropy.
    """

    params: MOONParams
    rivals: tuple[SplitModel, SplitModel] | None

    def begin_round(self, groups: Groups) -> None:
        """Freeze the received model and the one this client trained last."""
        previous = self.own.load()
        self.rivals = None
        if previous is not None:
            self.rivals = self.frozen(0, groups["model"]), self.frozen(1, previous)

    @replayable
    def objective(self, step: Step) -> Tensor:
        """CE + μ·ℓ_con, eq. (4)."""
        if self.rivals is None:
            return step.cross_entropy
        with torch.no_grad():
            z_global, z_previous = (m.forward_features(step.batch.x) for m in self.rivals)
        term = contrastive(step.features, z_global, z_previous, self.params.moon_temperature)
        return step.cross_entropy + self.params.moon_mu * term.mean()

    def step_kind(self) -> bool:
        """Whether two more models are passed through."""
        return self.rivals is not None

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """Keep the trained model: the previous one of this client's next round."""
        if self.params.moon_mu and result.steps:
            self.own.save(self.flat.vectors())
        return {}, {}
