"""SCAFFOLD (Karimireddy et al., arXiv 1910.06378, Algorithm 1, option II)."""

from typing import Any

import torch

from fedsyn_flwr.models import SplitModel

from .setting import Setting, State, cross_entropy

CASES: dict[str, dict[str, Any]] = {
    "scaffold": {"momentum": 0.0},
    "scaffold, η_g 0.7, BatchNorm": {
        "momentum": 0.0,
        "scaffold-server-lr": 0.7,
        "norm": "bn",
        "weighting": "uniform",
    },
    "scaffold, momentum": {"momentum": 0.5},
    # With all clients in every round -c in the second line changes nothing: it cancels in c - c_i.
    "scaffold, half of the clients": {"momentum": 0.0, "fraction-fit": 0.5},
}
OTHER = {"learning-rate": 0.045}


def simulate(s: Setting) -> State:
    """y ← y - η(g + c - c_i); c_i ← c_i - c + (x - y)/(n·η); c ← c + Σ Δc_i / K.

    With momentum m, which the paper does not have, η/(1-m) stands for η in the second line.
    """
    x = s.initial()
    names = [name for name, _ in s.model().named_parameters()]
    c = {name: torch.zeros_like(x[name]) for name in names}
    own = [{name: torch.zeros_like(x[name]) for name in names} for _ in s.clients]
    for t in s.rounds:
        trained, change = [], {name: torch.zeros_like(x[name]) for name in names}
        for i in s.sampled(t):

            def correct(model: SplitModel, c: State = c, c_i: State = own[i]) -> None:
                for name, p in model.named_parameters():
                    assert p.grad is not None
                    p.grad += c[name] - c_i[name]

            found = s.local(x, t, i, cross_entropy, correct)
            y = found.model.state_dict()
            travel = found.steps * s["learning-rate"] / (1 - s["momentum"])
            for name in names:
                new = own[i][name] - c[name] + (x[name] - y[name]) / travel
                change[name] += new - own[i][name]
                own[i] = {**own[i], name: new}
            trained.append(y)
        mean, eta = s.average(trained, s.sampled(t)), s["scaffold-server-lr"]
        moved = {name: x[name] + eta * (mean[name] - x[name]) for name in names}
        x = {**mean, **moved}
        c = {name: c[name] + change[name] / len(s.clients) for name in names}
    return x
