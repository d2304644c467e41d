"""FedProx (Li et al., arXiv 1812.06127, Algorithm 2 with SGD as the inexact solver)."""

from typing import Any

from torch import Tensor

from fedsyn_flwr.models import SplitModel

from .setting import Loss, Setting, State, cross_entropy

CASES: dict[str, dict[str, Any]] = {"fedprox": {"fedprox-mu": 0.5}}
OTHER = {"fedprox-mu": 0.25}


def simulate(s: Setting) -> State:
    """min F_k(w) + (μ/2)‖w - w_t‖², the squared norm of the parameters, by autograd."""
    w = s.initial()
    for t in s.rounds:
        centre = w

        def loss(model: SplitModel, x: Tensor, y: Tensor, centre: State = centre) -> Loss:
            plain = cross_entropy(model, x, y).objective
            apart = sum((p - centre[n]).square().sum() for n, p in model.named_parameters())
            return Loss(plain + s["fedprox-mu"] / 2 * apart, plain)

        w = s.average([s.local(w, t, k, loss).model.state_dict() for k in s.clients])
    return w
