"""FedProx (Li et al., arXiv 1812.06127): the local loss plus (μ/2)‖w - w_t‖²."""

from pydantic.dataclasses import dataclass

from fedsyn_flwr.client.numpy_client import FedClient
from fedsyn_flwr.config import SETTINGS, NonNegative
from fedsyn_flwr.losses import proximal_gradient
from fedsyn_flwr.messages.payload import Groups


@dataclass(frozen=True, config=SETTINGS)
class FedProxParams:
    """FedProx's key.

    ``fedprox_mu`` is μ: 0 regresses to FedAvg exactly, useful from 0.001 to 1.
    """

    fedprox_mu: NonNegative


class FedProxClient(FedClient):
    """FedAvg's client, held near the model it received.

    The term enters as its gradient on the flat vector of trainable parameters, which is exact and
    cheaper than building it as a graph; it is clipped together with the loss's gradient.
    """

    params: FedProxParams

    def begin_round(self, groups: Groups) -> None:
        """Remember w_t."""
        self.anchor = self.flat.trainable.clone()

    def after_backward(self) -> None:
        """Add the proximal term's gradient."""
        if self.params.fedprox_mu:
            w = self.flat.trainable
            self.flat.grad += proximal_gradient(w, self.anchor, self.params.fedprox_mu)
