"""HFMDS-FL and FMDS (Li et al., arXiv 2308.04761, Algorithm 1, eqs. 6 to 12)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel

from .pool import Draws, Pool, features, head, mixed
from .setting import Loss, LossOf, Setting, State, Trained

# A synthesis before every round: the first finds no prototypes, the third finds moved ones.
QUICK = {"synthesis-every": 1, "synthesis-steps": 12, "synthesis-per-client": 20}
CASES: dict[str, dict[str, Any]] = {
    "fmds": {**QUICK, "strategy": "fmds"},
    "hfmds": {**QUICK, "strategy": "hfmds"},
    "hfmds, every 2 rounds": {**QUICK, "synthesis-every": 2},
    "hfmds, map, softmax, priors": {
        **QUICK,
        "feature-level": "map",
        "feature-normaliser": "softmax",
        "synthesis-tv": 0.1,
        "synthesis-l2": 0.1,
    },
    "hfmds, joint batch, BatchNorm": {**QUICK, "hfmds-joint-batch": True, "norm": "bn"},
    "hfmds, CE alone": {**QUICK, "synthesis-loss": "ce"},
}
OTHER = {"hfmds-alpha": 0.6}
SMALL = 1e-8  # added within logarithms, which a masked feature would make infinite (a reading)


def distribution(s: Setting, v: Tensor) -> Tensor:
    """n(·), which the paper does not print."""
    if s["feature-normaliser"] == "softmax":
        return v.softmax(dim=1)
    positive = v.relu()
    return positive / positive.sum(dim=1, keepdim=True).clamp(min=SMALL)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of each row."""
    return (p * ((p + SMALL) / (q + SMALL)).log()).sum(dim=1)


def masked(s: Setting, model: SplitModel, z: Tensor, y: Tensor) -> Tensor:
    """ReLU(∂q^y/∂z) ⊙ z, by autograd, flattened."""
    with torch.enable_grad():
        at = z if z.requires_grad else z.clone().requires_grad_()
        score = head(s, model, at)[torch.arange(len(y)), y].sum()
        (slope,) = torch.autograd.grad(score, at, create_graph=z.requires_grad)
    return (slope.relu() * z).flatten(1)


def priors(s: Setting, x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, and mean square, of each image, weighted."""
    rows, columns = x.diff(dim=2).abs().flatten(1), x.diff(dim=3).abs().flatten(1)
    tv = rows.mean(dim=1) + columns.mean(dim=1)
    value: Tensor = s["synthesis-tv"] * tv + s["synthesis-l2"] * (x**2).flatten(1).mean(dim=1)
    return value


class Client:
    """What a client keeps: its prototypes by class."""

    def __init__(self, s: Setting, k: int) -> None:
        self.s, self.k, self.rows = s, k, s.parts[k]
        self.prototypes: dict[int, Tensor] = {}
        self.mu = 0.0 if s["strategy"] == "fmds" else s["hfmds-mu"]

    def synthesise(self, w: State, t: int) -> Pool:
        """min_x̂ CE + KL(n(masked z_h) ‖ n(masked ẑ)) by Adam, from noise, one on one with x."""
        s, k = self.s, self.k
        order = torch.randperm(len(self.rows), generator=s.stream(t, k, "synthesis"))
        chosen = self.rows[order[: s["synthesis-per-client"]]]
        x, y, model = s.x[chosen], s.y[chosen], s.model(w).eval()
        with torch.no_grad():
            z = features(s, model, x)
            hard = z + self.mu * (z - self.means(model, y))
        target = distribution(s, masked(s, model, hard, y)).detach()
        made = torch.randn(x.shape, generator=s.stream(t, k, "noise")).requires_grad_()
        adam = torch.optim.Adam([made], lr=s["synthesis-lr"])
        for _ in range(s["synthesis-steps"]):
            z = features(s, model, made)
            loss = F.cross_entropy(head(s, model, z), y, reduction="none")
            if s["synthesis-loss"] != "ce":
                matching = kl(target, distribution(s, masked(s, model, z, y)))
                loss = loss + s["synthesis-fm-weight"] * matching
            (made.grad,) = torch.autograd.grad((loss + priors(s, made)).sum(), made)
            adam.step()
        return Pool(made.detach(), y)

    def means(self, model: SplitModel, y: Tensor) -> Tensor:
        """z̄_y: the kept prototype, else the mean of the client's own samples under w_t."""
        found = {}
        for c in y.unique().tolist():
            own = self.rows[self.s.y[self.rows] == c]
            fresh = features(self.s, model, self.s.x[own]).mean(dim=0)
            found[c] = self.prototypes.get(c, fresh)
        return torch.stack([found[c] for c in y.tolist()])

    def train(self, w: State, t: int, pool: Pool | None) -> Trained:
        """Local training; the real samples' features on its way become prototypes."""
        s, seen = self.s, list[tuple[Tensor, Tensor]]()
        loss = self.watching(seen) if pool is None else mixed(s, Draws(s, pool, t, self.k), seen)
        found = s.local(w, t, self.k, loss)
        z, y = (torch.cat(column) for column in zip(*seen, strict=True))
        for c in y.unique().tolist():
            mean, share = z[y == c].mean(dim=0), s["hfmds-lambda"]
            old = self.prototypes.get(c)
            self.prototypes[c] = mean if old is None else (1 - share) * mean + share * old
        return found

    def watching(self, seen: list[tuple[Tensor, Tensor]]) -> LossOf:
        """CE, before there is a pool."""

        def loss(model: SplitModel, x: Tensor, y: Tensor) -> Loss:
            z = features(self.s, model, x)
            seen.append((z.detach(), y))
            value = F.cross_entropy(head(self.s, model, z), y)
            return Loss(value, value)

        return loss


class Clients:
    """All of them, and the pool: ``Clients(s).round(w, 1)``."""

    def __init__(self, s: Setting) -> None:
        self.s = s
        self.each = [Client(s, k) for k in s.clients]
        self.pool: Pool | None = None

    def round(self, w: State, t: int) -> list[Trained]:
        """A synthesis where t is a multiple of T_d, then the training of round t."""
        if t % self.s["synthesis-every"] == 0:
            parts = [client.synthesise(w, t) for client in self.each]
            self.pool = Pool(*(torch.cat(column) for column in zip(*parts, strict=True)))
        return [client.train(w, t, self.pool) for client in self.each]


def simulate(s: Setting) -> State:
    """FedAvg of such clients."""
    w, clients = s.initial(), Clients(s)
    for t in s.rounds:
        w = s.average([found.model.state_dict() for found in clients.round(w, t)])
    return w
