"""MrTF (Li et al., arXiv 2305.04201, eqs. 6 and 10 to 12); FedDF (Lin et al., arXiv 2006.07242)."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .setting import Setting, State, Trained, cross_entropy

QUICK = {"mrtf-steps": 12, "mrtf-batch": 32, "mrtf-clr-start": 2}
CASES: dict[str, dict[str, Any]] = {
    "mrtf": {**QUICK},
    "mrtf, ST": {**QUICK, "mrtf-modules": "st"},
    "mrtf, ST + RD, BatchNorm": {**QUICK, "mrtf-modules": "st+rd", "norm": "bn"},
    "mrtf, CLR not centred": {**QUICK, "mrtf-clr-center": False},
    "feddf": {**QUICK, "strategy": "feddf"},
    "fedavg, AvgProb": {
        **QUICK,
        "strategy": "fedavg",
        "refinement": "mrtf",
        "mrtf-modules": "avgprob",
    },
}
OTHER = {"mrtf-lr": 0.9e-3}
LEAST_RATE = 1e-8  # where the cosine ends
USELESS = 0.95  # a refined target above this share of log C says nothing: CLR is left out then


def answers(s: Setting, state: State) -> tuple[Tensor, Tensor]:
    """Features and logits on the server's images, in eval mode."""
    model = s.model(state).eval()
    with torch.no_grad():
        h = model.forward_features(s.test_x)
        return h, model.classifier(h)


def entropy(p: Tensor) -> Tensor:
    """-Σ p log p of each row."""
    return -(p * p.clamp(min=1e-30).log()).sum(dim=-1)


def ensemble(s: Setting, before: State, average: State, trained: list[Trained]) -> Tensor:
    """The target without clusters: AvgLogi, AvgProb, ST, or ST + RD."""
    f = [answers(s, client.model.state_dict())[1] for client in trained]
    modules = "avglogi" if s["strategy"] == "feddf" else s["mrtf-modules"]
    if modules == "avglogi":
        return torch.stack(f).mean(dim=0).softmax(dim=1)
    if modules == "avgprob":
        return torch.stack([logits.softmax(dim=1) for logits in f]).mean(dim=0)

    def q(logits: Tensor) -> Tensor:
        return (s["mrtf-tau"] * logits / logits.std()).softmax(dim=1)

    teachers = torch.stack([q(logits) for logits in f])
    if modules == "st":
        return teachers.mean(dim=0)
    weights = (-entropy(teachers)).softmax(dim=0)
    loss = sum(client.loss for client in trained) / len(trained)
    least = s["mrtf-u-min"]
    u = min(1.0, max(least, least + (1 - least) * loss / math.log(s.classes)))
    both = q(answers(s, before)[1]) + q(answers(s, average)[1])
    return u * (weights[:, :, None] * teachers).sum(dim=0) + (1 - u) / 2 * both


def clustered(s: Setting, target: Tensor, h: Tensor) -> Tensor:
    """CLR: softmax_c(-τ(1 - cos(h, c_c))) with the target's centroids, unless that is useless."""
    if s["mrtf-clr-center"]:
        h = h - h.mean(dim=0)
    centroids = torch.stack([(p[:, None] * h).sum(dim=0) / p.sum() for p in target.T])
    cosine = F.cosine_similarity(h[:, None], centroids[None], dim=2)
    refined = (-s["mrtf-tau"] * (1 - cosine)).softmax(dim=1)
    return target if entropy(refined).mean() > USELESS * math.log(s.classes) else refined


def distilled(s: Setting, start: State, target: Tensor, t: int) -> State:
    """Soft cross-entropy to the target by Adam, its rate falling as a cosine."""
    model, count, steps = s.model(start).train(), len(target), s["mrtf-steps"]
    source, wanted = s.stream(t, "distillation"), steps * s["mrtf-batch"]
    shuffles = [torch.randperm(count, generator=source) for _ in range(-(-wanted // count))]
    adam = torch.optim.Adam(model.parameters(), weight_decay=s["mrtf-weight-decay"])
    for i, rows in enumerate(torch.cat(shuffles)[:wanted].split(s["mrtf-batch"])):
        share = (1 + math.cos(math.pi * i / steps)) / 2
        adam.param_groups[0]["lr"] = LEAST_RATE + (s["mrtf-lr"] - LEAST_RATE) * share
        adam.zero_grad()
        loss = -(target[rows] * model(s.test_x[rows]).log_softmax(dim=1)).sum(dim=1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), s["clip-norm"])
        adam.step()
    return model.state_dict()


def refined(s: Setting, before: State, trained: list[Trained], t: int) -> State:
    """The model that the next round's clients get."""
    average = s.average([client.model.state_dict() for client in trained])
    target = ensemble(s, before, average, trained)
    brings = s["strategy"] in ("mrtf", "hfmds-mrtf") and "clr" in s["mrtf-modules"]
    if brings and t >= s["mrtf-clr-start"]:
        target = clustered(s, target, answers(s, average)[0])
    return distilled(s, average, target, t)


def simulate(s: Setting) -> State:
    """FedAvg's clients, and the server's refinement of the average."""
    w = s.initial()
    for t in s.rounds:
        w = refined(s, w, [s.local(w, t, k, cross_entropy) for k in s.clients], t)
    return w
