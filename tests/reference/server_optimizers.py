"""FedAvgM (Hsu et al., arXiv 1909.06335); FedAdagrad, FedAdam, FedYogi (arXiv 2003.00295)."""

from typing import Any

import torch

from .setting import Setting, State, cross_entropy

NAMES = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
CASES: dict[str, dict[str, Any]] = {
    name: {"strategy": name, "server-lr": 0.05 if name != "fedavgm" else 0.9} for name in NAMES
}
CASES["fedadam, BatchNorm"] = {"strategy": "fedadam", "norm": "bn"}
OTHER = {"server-beta1": 0.8}
DEFAULT = {"fedadam": 0.01}


def second_moment(name: str, v: torch.Tensor, delta: torch.Tensor, beta2: float) -> torch.Tensor:
    """v_t of the three adaptive methods."""
    if name == "fedadagrad":
        return v + delta**2
    if name == "fedadam":
        return beta2 * v + (1 - beta2) * delta**2
    return v - (1 - beta2) * delta**2 * torch.sign(v - delta**2)


def simulate(s: Setting) -> State:
    """The server's step along Δ = Σ p_k w_k - w; m_0 = 0 and v_0 = τ²; parameters alone."""
    name, tau = s["strategy"], s["server-tau"]
    eta, beta1 = s["server-lr"] or DEFAULT[name], s["server-beta1"]
    w = s.initial()
    names = [n for n, _ in s.model().named_parameters()]
    m = {n: torch.zeros_like(w[n], dtype=torch.float64) for n in names}
    v = {n: torch.full_like(w[n], tau**2, dtype=torch.float64) for n in names}
    for t in s.rounds:
        mean = s.average([s.local(w, t, k, cross_entropy).model.state_dict() for k in s.clients])
        new = dict(mean)
        for n in names:
            delta = mean[n].double() - w[n].double()
            if name == "fedavgm":
                m[n] = beta1 * m[n] + delta
                step = m[n]
            else:
                m[n] = beta1 * m[n] + (1 - beta1) * delta
                v[n] = second_moment(name, v[n], delta, s["server-beta2"])
                step = m[n] / (v[n].sqrt() + tau)
            new[n] = (w[n] + eta * step).float()
        w = new
    return w
