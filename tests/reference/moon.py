"""MOON (Li et al., arXiv 2103.16257, Algorithm 1)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel

from .setting import Loss, Setting, State, cross_entropy

CASES: dict[str, dict[str, Any]] = {
    "moon": {"moon-mu": 5.0},
    "moon, projection head, BatchNorm": {"projection-dim": 12, "norm": "bn"},
}
OTHER = {"moon-temperature": 0.6}


def simulate(s: Setting) -> State:
    """CE - μ·log[e^{cos(z, z_glob)/T} / (e^{cos(z, z_glob)/T} + e^{cos(z, z_prev)/T})].

    z_prev is of the client's own last model; before there is one, CE alone.
    """
    w, last = s.initial(), [State() for _ in s.clients]
    for t in s.rounds:
        for k in s.clients:
            rivals = [s.model(state).eval() for state in (w, last[k])] if last[k] else []

            def loss(
                model: SplitModel, x: Tensor, y: Tensor, rivals: list[SplitModel] = rivals
            ) -> Loss:
                if not rivals:
                    return cross_entropy(model, x, y)
                z = model.forward_features(x)
                with torch.no_grad():
                    others = [rival.forward_features(x) for rival in rivals]
                unit = F.normalize(z, dim=1)
                cosines = [(unit * F.normalize(o, dim=1)).sum(dim=1) for o in others]
                scores = torch.stack(cosines, dim=1) / s["moon-temperature"]
                term = -scores.log_softmax(dim=1)[:, 0].mean()
                plain = F.cross_entropy(model.classifier(z), y)
                return Loss(plain + s["moon-mu"] * term, plain)

            last[k] = s.local(w, t, k, loss).model.state_dict()
        w = s.average(last)
    return w
