"""FedGAN (Rasouli et al., arXiv 2006.07228) with an ACGAN (arXiv 1610.09585); then eq. (6)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr.rng import Reshuffled, derive

from .pool import Draws, Pool, mixed
from .setting import Setting, State

CASES: dict[str, dict[str, Any]] = {
    "fedgan": {"gan-rounds": 3, "gan-steps": 4, "gan-width": 8, "synthesis-per-client": 20}
}
OTHER = {"gan-lr": 0.9e-3}
SIDE, GROUPS = 8, 4  # of the digits; of GroupNorm over 8 channels


class Generator(nn.Module):
    """z and a one-hot class → 4x4 map → 8x8 image in [-1, 1]."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        width = s["gan-width"]
        self.one_hot = s.one_hot
        self.project = nn.Linear(s["gan-noise"] + s.classes, width * (SIDE // 2) ** 2)
        self.norm = nn.GroupNorm(GROUPS, width)
        self.image = nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Images (B, 1, 8, 8)."""
        h = self.project(torch.cat([z, self.one_hot(y)], dim=1))
        h = self.norm(h.view(len(y), -1, SIDE // 2, SIDE // 2)).relu()
        return torch.tanh(self.image(h))


class Discriminator(nn.Module):
    """One strided convolution; is it real, and which class?"""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        width = s["gan-width"]
        self.conv = nn.Conv2d(1, width, 4, stride=2, padding=1)
        self.real = nn.Linear(width * (SIDE // 2) ** 2, 1)
        self.classes = nn.Linear(width * (SIDE // 2) ** 2, s.classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logit (B,), logits (B, C)."""
        h = F.leaky_relu(self.conv(x), 0.2).flatten(1)
        return self.real(h)[:, 0], self.classes(h)


def fresh(s: Setting) -> tuple[Generator, Discriminator]:
    """Both networks at DCGAN's initial weights: N(0, 0.02²), biases 0."""
    torch.manual_seed(derive(s["seed"], "gan"))
    g, d = Generator(s), Discriminator(s)
    for layer in (g.project, g.image, d.conv, d.real, d.classes):
        nn.init.normal_(layer.weight, 0.0, 0.02)
        nn.init.zeros_(layer.bias)
    return g, d


def source_loss(logit: Tensor, real: bool) -> Tensor:
    """-log of the probability of the right answer."""
    return F.binary_cross_entropy_with_logits(logit, torch.full_like(logit, float(real)))


def steps(s: Setting, start: tuple[State, State], number: int, k: int) -> tuple[State, State]:
    """A client's local steps: the discriminator's, then the generator's, on each batch."""
    g, d = fresh(s)
    g.load_state_dict(start[0])
    d.load_state_dict(start[1])
    betas = (s["gan-beta1"], 0.999)
    adam_g, adam_d = (torch.optim.Adam(net.parameters(), s["gan-lr"], betas) for net in (g, d))
    source = s.stream(1, k, f"gan-{number}")
    order = Reshuffled(len(s.parts[k]), source)
    for _ in range(s["gan-steps"]):
        rows = s.parts[k][order.take(s["gan-batch-size"])]
        pixels = (s.x[rows] * s.std + s.mean).clamp(0, 1)
        y = s.y[rows]
        made = g(torch.randn(len(y), s["gan-noise"], generator=source), y)
        (real, named), (fake, called) = d(2 * pixels - 1), d(made.detach())
        adam_d.zero_grad()
        loss = source_loss(real, True) + source_loss(fake, False)
        (loss + F.cross_entropy(named, y) + F.cross_entropy(called, y)).backward()
        adam_d.step()
        fake, called = d(made)
        adam_g.zero_grad()
        (source_loss(fake, True) + F.cross_entropy(called, y)).backward()
        adam_g.step()
    return g.state_dict(), d.state_dict()


def samples(s: Setting, g: Generator, k: int) -> Pool:
    """B_g images of the classes of as many of the client's samples, normalised."""
    source, rows = s.stream(1, k, "samples"), s.parts[k]
    order = torch.randperm(len(rows), generator=source)
    y = s.y[rows[order[: s["synthesis-per-client"]]]]
    with torch.no_grad():
        images = g(torch.randn(len(y), s["gan-noise"], generator=source), y)
    return Pool(s.normal(255 * (images + 1) / 2), y)


def simulate(s: Setting) -> State:
    """The GAN by federated averaging, its images, then training on both."""
    g, d = fresh(s)
    nets = (g.state_dict(), d.state_dict())
    for number in range(1, s["gan-rounds"] + 1):
        trained = [steps(s, nets, number, k) for k in s.clients]
        nets = s.average([one for one, _ in trained]), s.average([two for _, two in trained])
    g.load_state_dict(nets[0])
    parts = [samples(s, g, k) for k in s.clients]
    pool = Pool(*(torch.cat(column) for column in zip(*parts, strict=True)))
    w = s.initial()
    for t in s.rounds:
        losses = [mixed(s, Draws(s, pool, t, k), []) for k in s.clients]
        w = s.average([s.local(w, t, k, losses[k]).model.state_dict() for k in s.clients])
    return w
