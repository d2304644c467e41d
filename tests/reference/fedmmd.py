"""FedMMD (Yao et al., "Two-Stream Federated Learning", VCIP 2018)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel

from .setting import Loss, Setting, State

CASES: dict[str, dict[str, Any]] = {"fedmmd": {"fedmmd-lambda": 1.0}}
OTHER = {"fedmmd-lambda": 0.9}


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """MMD² (biased) of rows, five Gaussian kernels around the mean squared distance of a pair."""
    both = torch.cat([a, b])
    square = (both[:, None] - both[None]).square().sum(dim=2)
    pairs = ~torch.eye(len(both), dtype=torch.bool)
    width = square.detach()[pairs].mean()
    kernel = sum((-square / (width * 2.0**i)).exp() for i in range(-2, 3))
    sign = torch.cat([torch.full((len(a),), 1 / len(a)), torch.full((len(b),), -1 / len(b))])
    return sign @ kernel @ sign


def simulate(s: Setting) -> State:
    """CE + λ·MMD²(z of the local model, z of the received one), batch by batch."""
    w = s.initial()
    for t in s.rounds:
        received = s.model(w).eval()

        def loss(model: SplitModel, x: Tensor, y: Tensor, received: SplitModel = received) -> Loss:
            z = model.forward_features(x)
            with torch.no_grad():
                there = received.forward_features(x)
            plain = F.cross_entropy(model.classifier(z), y)
            return Loss(plain + s["fedmmd-lambda"] * mmd(z, there), plain)

        w = s.average([s.local(w, t, k, loss).model.state_dict() for k in s.clients])
    return w
