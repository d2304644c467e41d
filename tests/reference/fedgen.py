"""FedGen (Zhu et al., arXiv 2105.10056, Algorithm 1), with the KL of its authors' code."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.rng import derive

from .setting import Loss, LossOf, Setting, State, Trained, cross_entropy

CASES: dict[str, dict[str, Any]] = {
    "fedgen": {"fedgen-alpha": 2.0, "fedgen-beta": 3.0, "fedgen-lr": 3e-3, "fedgen-iterations": 15}
}
OTHER = {"fedgen-beta": 2.9}


class Generator(nn.Module):
    """G(y, ε): one hidden layer with BatchNorm, to a feature vector."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.s, size = s, s["fedgen-hidden"]
        self.inner = nn.Linear(s.classes + s["fedgen-noise"], size, bias=False)
        self.norm = nn.BatchNorm1d(size)
        self.outer = nn.Linear(size, s.model().feature_dim)

    def forward(self, y: Tensor, noise: Tensor) -> Tensor:
        """Features (B, d)."""
        given = torch.cat([self.s.one_hot(y), noise], dim=1)
        z: Tensor = self.outer(self.norm(self.inner(given)).relu())
        return z


def draws(s: Setting, n: int, source: torch.Generator) -> Tensor:
    """n labels, uniform over the classes that somebody has."""
    classes = s.y.unique()
    return classes[torch.randint(len(classes), (n,), generator=source)]


def noise(s: Setting, n: int, source: torch.Generator) -> Tensor:
    """ε ~ N(0, I)."""
    return torch.randn(n, s["fedgen-noise"], generator=source)


def taught(
    s: Setting, g: Generator, adam: torch.optim.Adam, trained: list[Trained], t: int
) -> None:
    """min_G Σ_k w_k(y)·CE(h_k(z), y) + exp(-mean(d_ε·d_z)), w_k(y) client k's share of class y."""
    source, n = s.stream(t, "generator"), s["fedgen-batch-size"]
    counts = torch.stack([F.one_hot(s.y[rows], s.classes).sum(dim=0) for rows in s.parts])
    weights = counts / counts.sum(dim=0).clamp(min=1)
    heads = [client.model.classifier.eval().requires_grad_(False) for client in trained]
    g.train()
    for _ in range(s["fedgen-iterations"]):
        y = draws(s, n, source)
        eps = noise(s, n, source)
        z = g(y, eps)
        each = [F.cross_entropy(head(z), y, reduction="none") for head in heads]
        teachers = sum((weights[k, y] * each[k]).mean() for k in s.clients)
        d_eps = torch.stack([(e - eps).square().mean(dim=1) for e in eps])
        d_z = torch.stack([(one - z).abs().mean(dim=1) for one in z])
        adam.zero_grad()
        (teachers + s["fedgen-diversity"] * torch.exp(-(d_eps * d_z).mean())).backward()
        adam.step()
    g.eval()


def guided(s: Setting, g: Generator, t: int, k: int) -> LossOf:
    """CE + a_t·CE(h(G(y')), y') + b_t·KL(σ(h(G(y))) ‖ p(x)), the target held fixed."""
    fade, source = s["fedgen-decay"] ** (t - 1), s.stream(t, k, "generator")

    def loss(model: SplitModel, x: Tensor, y: Tensor) -> Loss:
        logits, drawn = model(x), draws(s, s["batch-size"], source)
        with torch.no_grad():
            same = g(y, noise(s, len(y), source))
            other = g(drawn, noise(s, len(drawn), source))
            p = model.classifier(same).softmax(dim=1)
        plain = F.cross_entropy(logits, y)
        generated = F.cross_entropy(model.classifier(other), drawn)
        apart = (p * (p.log() - logits.log_softmax(dim=1))).sum(dim=1).mean()
        a, b = s["fedgen-alpha"] * fade, s["fedgen-beta"] * fade
        return Loss(plain + a * generated + b * apart, plain)

    return loss


def simulate(s: Setting) -> State:
    """Round 1 is FedAvg's; from then on there is a generator."""
    torch.manual_seed(derive(s["seed"], "generator"))
    g = Generator(s)
    rate, decay = s["fedgen-lr"], s["fedgen-weight-decay"]
    adam = torch.optim.Adam(g.parameters(), lr=rate, weight_decay=decay)
    w = s.initial()
    for t in s.rounds:
        losses = [cross_entropy if t == 1 else guided(s, g, t, k) for k in s.clients]
        trained = [s.local(w, t, k, losses[k]) for k in s.clients]
        w = s.average([client.model.state_dict() for client in trained])
        taught(s, g, adam, trained, t)
    return w
