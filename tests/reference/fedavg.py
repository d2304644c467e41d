"""FedAvg (McMahan et al., arXiv 1602.05629, Algorithm 1)."""

from typing import Any

from .setting import Setting, State, cross_entropy

CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, uniform": {"weighting": "uniform"},
    "fedavg, BatchNorm": {"norm": "bn"},
}
OTHER = {"momentum": 0.8}


def simulate(s: Setting) -> State:
    """w ← Σ p_k w_k, each w_k by SGD from w; buffers are averaged, too."""
    w = s.initial()
    for t in s.rounds:
        w = s.average([s.local(w, t, k, cross_entropy).model.state_dict() for k in s.clients])
    return w
