"""SCAFFOLD (Karimireddy et al., arXiv 1910.06378), client half: w ← w - η(g + c - c_i)."""

import torch
from torch import Tensor

from fedsyn_flwr.client.numpy_client import FedClient, Metrics, as_numpy
from fedsyn_flwr.client.training import LocalResult
from fedsyn_flwr.messages.payload import Groups


def option_two(own: Tensor, c: Tensor, moved: Tensor, travel: float) -> Tensor:
    """The client's new control, c_i⁺ = c_i - c + (w_t - w)/(n·η) (Algorithm 1, option II).

    Parameters
    ----------
    own, c, moved : Tensor
        c_i, c and w_t - w, shape (P,).
    travel : float
        n·η: how far unit gradients would have moved the model; 0 when nothing was trained, which
        leaves the control as it is.
    """
    return own - c + moved / travel if travel else own


class ScaffoldClient(FedClient):
    """Algorithm 1 of SCAFFOLD, the client's lines; trainable parameters only.

    The correction joins the gradient before clipping, so no step is longer than η·clip-norm
    whatever the controls are; the paper has no clipping. With the client's momentum m, which the
    paper does not have either, a gradient moves the model by η/(1-m) in the end, so that stands
    for η in option II. Over few steps momentum has not built up yet and the control comes out too
    small, never too large: it corrects less than it could. The confs set momentum = 0.
    """

    def begin_round(self, groups: Groups) -> None:
        """Take c from the message, c_i from this node; both start at zero."""
        self.start = self.flat.trainable.clone()
        self.c = torch.tensor(groups["control"]["c"], device=self.start.device)
        kept = self.own.load()
        self.c_i = torch.zeros_like(self.c)
        if kept is not None:
            self.c_i.copy_(torch.from_numpy(kept["control"]))
        self.correction = self.c - self.c_i

    def after_backward(self) -> None:
        """g + c - c_i."""
        self.flat.grad += self.correction

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """Keep the new control and send by how much it changed."""
        train = self.worker.settings.train
        travel = result.steps * train.learning_rate / (1 - train.momentum)
        new = option_two(self.c_i, self.c, self.start - self.flat.trainable, travel)
        self.own.save({"control": as_numpy(new)})
        return {"control": {"delta": as_numpy(new - self.c_i)}}, {}
