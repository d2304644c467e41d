"""Feature-matching data synthesis: noise turned into images that a model takes for real ones.

HFMDS-FL (arXiv 2308.04761), section IV. All of a client's images are optimised together, as one
tensor; their losses are summed, so the images do not influence each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr import losses
from fedsyn_flwr.models import SplitModel

Extractor = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class InversionSettings:
    """The keys of an inversion, in the paper's symbols.

    ``fm_weight`` is w_FM ≥ 0 (0 leaves L_C alone), ``mu`` the hardness (0 is FMDS, negative is
    easier than real), ``tv`` and ``l2`` are image priors the paper does not use (0).
    """

    steps: int
    lr: float
    fm_weight: float
    mu: float
    tv: float
    l2: float
    normaliser: Literal["l1", "softmax"]
    level: Literal["vector", "map"]


class _Flat(nn.Module):
    """The head seen from a flattened feature map."""

    def __init__(self, model: SplitModel, shape: torch.Size) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, z: Tensor) -> Tensor:
        return self.model.classifier(self.model.neck(z.view(-1, *self.shape)))


def split(model: SplitModel, level: str, x: Tensor) -> tuple[Extractor, nn.Module]:
    """The model as (f_e, f_d) at a feature level: f_e(x) has shape (B, d), f_d(z) (B, C)."""
    if level == "vector":
        return model.forward_features, model.classifier
    shape = model.forward_map(x[:1]).shape[1:]
    return lambda images: model.forward_map(images).flatten(1), _Flat(model, shape)


def target_features(
    model: SplitModel, x: Tensor, y: Tensor, prototypes: Tensor, settings: InversionSettings
) -> Tensor:
    """Masked features that the synthetic images are to match, detached.

    Parameters
    ----------
    x, y : Tensor
        Real images (B, C, H, W) and labels (B,).
    prototypes : Tensor
        z̄_y of each image's class, shape (B, d).

    Returns
    -------
    Tensor
        ReLU(g_{z_h}) ⊙ z_h, shape (B, d).
    """
    extract, classifier = split(model, settings.level, x)
    with torch.no_grad():
        z = losses.hard_features(extract(x), prototypes, settings.mu)
    return losses.masked_features(losses.class_score_gradient(classifier, z, y), z).detach()


def inversion_loss(
    model: SplitModel, x: Tensor, y: Tensor, target: Tensor | None, settings: InversionSettings
) -> Tensor:
    """L = L_C + w_FM·L_(H)FM (+ priors) of each synthetic image (eq. 12), shape (B,)."""
    extract, classifier = split(model, settings.level, x)
    z = extract(x)
    loss = F.cross_entropy(classifier(z), y, reduction="none")
    if target is not None:
        gradient = losses.class_score_gradient(classifier, z, y)
        features = losses.masked_features(gradient, z)
        matching = losses.feature_matching(target, features, settings.normaliser)
        loss = loss + settings.fm_weight * matching
    if settings.tv:
        loss = loss + settings.tv * losses.total_variation(x)
    if settings.l2:
        loss = loss + settings.l2 * losses.squared_norm(x)
    return loss


def invert(
    model: SplitModel,
    x: Tensor,
    y: Tensor,
    prototypes: Tensor,
    settings: InversionSettings,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Synthesise one image per real image.

    Parameters
    ----------
    model : SplitModel
        Used in eval mode and left as it was.
    x, y : Tensor
        Real images in normalised pixel space (B, C, H, W) and labels (B,).
    prototypes : Tensor
        z̄_y of each image's class at the settings' feature level, (B, d); unused when μ = 0.
    generator : torch.Generator
        Source of the initial x̂ ~ N(0, I); a CPU generator.

    Returns
    -------
    tuple
        x̂, shape of ``x``, and the last loss of each image, shape (B,).
    """
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    synthetic = noise.contiguous(memory_format=_format(x)).requires_grad_()
    with _frozen(model):
        needs_target = settings.fm_weight > 0
        target = target_features(model, x, y, prototypes, settings) if needs_target else None
        optimiser = torch.optim.Adam([synthetic], lr=settings.lr)
        loss = torch.zeros(len(y), device=x.device)
        for _ in range(settings.steps):
            loss = inversion_loss(model, synthetic, y, target, settings)
            (synthetic.grad,) = torch.autograd.grad(loss.sum(), synthetic)
            optimiser.step()
    return synthetic.detach(), loss.detach()


def _format(x: Tensor) -> torch.memory_format:
    last = x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


class _frozen:  # noqa: N801 - reads as a context
    """Eval mode without parameter gradients; both restored at the end."""

    def __init__(self, model: SplitModel) -> None:
        self.model = model
        self.training = model.training

    def __enter__(self) -> None:
        self.model.eval()
        self.model.requires_grad_(False)

    def __exit__(self, *exc: object) -> None:
        self.model.requires_grad_(True)
        self.model.train(self.training)
