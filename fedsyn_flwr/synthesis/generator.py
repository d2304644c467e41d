"""FedGen's generator of features (Zhu et al., arXiv 2105.10056): G(y, ε) → z, and how it learns.

Pure PyTorch: the server teaches the generator, the clients learn from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedsyn_flwr.compute.device import to_device
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.models.layers import linear_block

Head = dict[str, Tensor]
Heads = Callable[[Tensor], Tensor]
ADAM = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class TeachingSettings:
    """How the generator is trained in a round: ``iterations`` of Adam on ``batch_size`` samples.

    ``diversity`` ≥ 0 weighs the diversity term, 0 leaves it out.
    """

    iterations: int
    batch_size: int
    lr: float
    weight_decay: float
    diversity: float


class Generator(nn.Module):
    """G(y, ε): one-hot label and noise → linear, BatchNorm, ReLU → linear → feature vector.

    Parameters
    ----------
    num_classes, noise_dim, hidden, feature_dim : int
        C, the length of ε, the hidden layer's size and d, the length of z.
    """

    def __init__(self, num_classes: int, noise_dim: int, hidden: int, feature_dim: int) -> None:
        super().__init__()
        self.num_classes, self.noise_dim = num_classes, noise_dim
        inside = linear_block(num_classes + noise_dim, hidden, "bn")
        self.layers = nn.Sequential(*inside, nn.Linear(hidden, feature_dim))

    def forward(self, y: Tensor, eps: Tensor) -> Tensor:
        """Labels (B,) and noise (B, noise_dim) → features (B, d)."""
        one_hot = F.one_hot(y, self.num_classes).to(eps.dtype)
        z: Tensor = self.layers(torch.cat([one_hot, eps], dim=1))
        return z

    def noise(self, n: int, generator: torch.Generator) -> Tensor:
        """ε ~ N(0, I), shape (n, noise_dim), on the network's device."""
        device = next(self.parameters()).device
        return to_device(torch.randn(n, self.noise_dim, generator=generator), device)


def build_generator(
    num_classes: int,
    noise_dim: int,
    hidden: int,
    feature_dim: int,
    *,
    seed: int,
    device: torch.device,
) -> FlatModel[Generator]:
    """A freshly initialised generator as flat vectors; the same seed gives the same bits."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        generator = Generator(num_classes, noise_dim, hidden, feature_dim)
    return FlatModel(generator.to(device))


def draw(classes: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n labels, uniform over ``classes`` (m,), with replacement."""
    chosen = torch.randint(len(classes), (n,), generator=generator)
    return classes[to_device(chosen, classes.device)]


# ---- the server's objective, eq. (4)


def teacher_weights(counts: Tensor) -> Tensor:
    """w_k(y): client k's share of all teachers' samples of class y.

    Parameters
    ----------
    counts : Tensor
        Samples per client and class, shape (K, C), ≥ 0.

    Returns
    -------
    Tensor
        Shape (K, C); a column sums to 1, or is 0 where no teacher has the class.
    """
    return counts / counts.sum(dim=0).clamp(min=1)


def teacher_loss(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Σ_k w_k(y)·CE(h_k(z), y), mean over the batch.

    Parameters
    ----------
    logits : Tensor
        h_k(z) of every teacher, shape (K, B, C).
    y, weights : Tensor
        Labels (B,) and `teacher_weights` (K, C).
    """
    k, b, _ = logits.shape
    each = F.cross_entropy(logits.flatten(0, 1), y.repeat(k), reduction="none").view(k, b)
    return (weights[:, y] * each).sum(dim=0).mean()


def diversity(eps: Tensor, z: Tensor) -> Tensor:
    """exp(-mean(d_ε·d_z)) over all ordered pairs of a batch, in (0, 1]; 1 where all z are equal.

    d_ε is the mean squared difference of two noise vectors, d_z the mean absolute difference of
    what was made of them, as in the authors' code.

    Parameters
    ----------
    eps, z : Tensor
        Shapes (B, n) and (B, d).
    """
    d_eps = (eps[:, None] - eps[None]).square().mean(dim=2)
    d_z = (z[:, None] - z[None]).abs().mean(dim=2)
    return (-(d_eps * d_z).mean()).exp()


def all_heads(classifier: nn.Module, heads: Sequence[Head]) -> Heads:
    """The teachers as one function, features (B, d) → logits (K, B, C), in eval mode.

    Parameters
    ----------
    classifier : nn.Module
        Says how the tensors of a head are used; its own values are not.
    heads : sequence of dict
        Every teacher's tensors by name.
    """
    classifier.eval()
    stacked = {name: torch.stack([head[name] for head in heads]) for name in heads[0]}

    def logits(z: Tensor) -> Tensor:
        return vmap(lambda head: functional_call(classifier, head, (z,)))(stacked)

    return logits


class Taught(NamedTuple):
    """The terms of the generator's loss, means over a round's iterations."""

    teacher_loss: float
    diversity: float


class Teaching:
    """The generator with its optimiser, which go on from round to round.

    Attributes
    ----------
    flat : FlatModel
        The generator.
    classes : Tensor
        Which classes it has ever been taught, shape (C,), bool.
    """

    def __init__(self, flat: FlatModel[Generator], settings: TeachingSettings) -> None:
        self.flat, self.settings = flat, settings
        self.classes = torch.zeros(flat.module.num_classes, dtype=torch.bool)
        # Adam's weight decay is the authors' too: added to the gradient, of every parameter.
        self.adam = torch.optim.Adam(
            [flat.trainable], lr=settings.lr, weight_decay=settings.weight_decay
        )

    def round(self, heads: Heads, weights: Tensor, generator: torch.Generator) -> Taught:
        """Learn from a round's teachers, with labels uniform over the classes that they have.

        Parameters
        ----------
        heads : callable
            See `all_heads`.
        weights : Tensor
            `teacher_weights`, shape (K, C), not all 0.
        generator : torch.Generator
            Source of labels and noise; a CPU generator.
        """
        known = weights.sum(dim=0) > 0
        classes, size = known.nonzero().flatten(), self.settings.batch_size
        terms = torch.zeros(2, device=weights.device)
        self.flat.module.train()
        for _ in range(self.settings.iterations):
            y, eps = draw(classes, size, generator), self.flat.module.noise(size, generator)
            terms += self.step(heads, weights, y, eps)
        self.classes |= known.cpu()
        return Taught(*(terms / self.settings.iterations).tolist())

    def step(self, heads: Heads, weights: Tensor, y: Tensor, eps: Tensor) -> Tensor:
        """One step of Adam on labels (B,) and noise; returns the two terms, shape (2,)."""
        z = self.flat.module(y, eps)
        terms = torch.stack([teacher_loss(heads(z), y, weights), diversity(eps, z)])
        self.flat.backward(terms[0] + self.settings.diversity * terms[1])
        self.flat.gather()
        self.adam.step()
        return terms.detach()

    def group(self) -> dict[str, np.ndarray]:
        """The generator as it travels: a copy of its vectors, and the classes it was taught."""
        return {**self.flat.copy_vectors(), "classes": self.classes.numpy().copy()}

    def state(self) -> dict[str, np.ndarray]:
        """`group` and Adam's moments, copied; these are there once a step was made."""
        moments = self.adam.state[self.flat.trainable]
        return self.group() | {name: moments[name].cpu().numpy().copy() for name in moments}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Take back what `state` gave."""
        self.flat.load(state)
        self.classes = torch.from_numpy(state["classes"].copy())
        own, device = self.adam.state[self.flat.trainable], self.flat.trainable.device
        own.clear()
        for name in ADAM:
            if name in state:
                value = torch.from_numpy(state[name].copy())
                own[name] = value.reshape(()) if name == "step" else value.to(device)


# ---- the client's terms, eq. (5)


def guidance(logits: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """KL(σ(target) ‖ σ(logits)) in nats, mean over the batch; the target is taken as a constant.

    Parameters
    ----------
    logits : Tensor
        Of the real samples, shape (B, C).
    target : Tensor
        h(G(y)) of features generated for the same labels, shape (B, C).
    known : Tensor
        Which of these labels the generator was taught, shape (B,), bool: the others count as 0.
    """
    p, q = target.detach().log_softmax(dim=1), logits.log_softmax(dim=1)
    each = F.kl_div(q, p, reduction="none", log_target=True).sum(dim=1)
    return (each * known).mean()
