"""Feature-matching data synthesis: noise turned into images that a model takes for real ones.

HFMDS-FL (arXiv 2308.04761), section IV. All of a client's images are optimised together, as one
tensor; their losses are summed, so the images do not influence each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr import losses
from fedsyn_flwr.compute.adam import Adam
from fedsyn_flwr.compute.cost_meter import Meter
from fedsyn_flwr.compute.cuda_graphs import Passes, Tensors, plainly
from fedsyn_flwr.compute.device import precision
from fedsyn_flwr.models import SplitModel

Extractor = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class InversionSettings:
    """The keys of an inversion, in the paper's symbols.

    ``fm_weight`` is w_FM ≥ 0 (0 leaves L_C alone), ``mu`` the hardness (0 is FMDS, negative is
    easier than real), ``tv`` and ``l2`` are image priors the paper does not use (0).
    ``patience`` > 0 ends it after so many steps in which the total loss did not fall below
    (1 - ``tolerance``) times its lowest; ``batch`` > 0 sends so many images at a time through
    the model, for want of memory; ``amp`` has the model compute in bfloat16.
    """

    steps: int
    lr: float
    fm_weight: float
    mu: float
    tv: float
    l2: float
    normaliser: Literal["l1", "softmax"]
    level: Literal["vector", "map"]
    patience: int = 0
    tolerance: float = 1e-3
    batch: int = 0
    amp: bool = False


class Inversion(NamedTuple):
    """x̂ (B, C, H, W), the last loss of each image (B,), and the number of steps done."""

    images: Tensor
    loss: Tensor
    steps: int


class _MapHead(nn.Module):
    """The head seen from a flattened feature map; `extract` tells it the map's shape."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model, self.shape = model, torch.Size()

    def extract(self, x: Tensor) -> Tensor:
        feature_map = self.model.forward_map(x)
        self.shape = feature_map.shape[1:]
        return feature_map.flatten(1)

    def forward(self, z: Tensor) -> Tensor:
        return self.model.classifier(self.model.neck(z.view(-1, *self.shape)))


def split(model: SplitModel, level: str) -> tuple[Extractor, nn.Module]:
    """The model as (f_e, f_d) at a feature level: f_e(x) has shape (B, d), f_d(z) (B, C).

    f_d of the map level takes what f_e returned, so f_e comes first.
    """
    if level == "vector":
        return model.forward_features, model.classifier
    head = _MapHead(model)
    return head.extract, head


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
    extract, classifier = split(model, settings.level)
    with torch.no_grad():
        z = losses.hard_features(extract(x), prototypes, settings.mu)
    return losses.masked_features(losses.class_score_gradient(classifier, z, y), z).detach()


def inversion_loss(
    model: SplitModel, x: Tensor, y: Tensor, target: Tensor | None, settings: InversionSettings
) -> Tensor:
    """L = L_C + w_FM·L_(H)FM (+ priors) of each synthetic image (eq. 12), shape (B,)."""
    extract, classifier = split(model, settings.level)
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
    meter: Meter | None = None,
    passes: Passes = plainly,
) -> Inversion:
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
    meter : Meter, optional
        Counts the operations.
    passes : Passes, optional
        How each piece's forward and backward pass is done.

    Returns
    -------
    Inversion
        Up to rounding it does not depend on ``settings.batch``: there is one noise and one
        optimiser for all images.
    """
    meter = meter or Meter("synthesis")
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    synthetic = noise.contiguous(memory_format=_format(x))
    with _frozen(model):
        targets = _targets(model, x, y, prototypes, settings, meter)
        optimiser = Adam(synthetic, settings.lr)
        plateau, steps = Plateau(settings.patience, settings.tolerance), 0
        loss = torch.zeros(len(y), device=x.device)
        while steps < settings.steps and not plateau.reached:
            loss, gradient = _gradient(model, synthetic, y, targets, settings, meter, passes)
            optimiser.step(gradient)
            plateau.watch(loss)
            steps += 1
    return Inversion(synthetic, loss, steps)


class Plateau:
    """Whether a total loss ≥ 0 has stopped falling.

    Parameters
    ----------
    patience : int
        Steps to wait for a new lowest loss; 0 = for ever, without ever looking at the loss, which
        on CUDA would wait for the device.
    tolerance : float
        By which share of itself the lowest loss must fall to count, in [0, 1).
    """

    def __init__(self, patience: int, tolerance: float) -> None:
        self.patience, self.tolerance = patience, tolerance
        self.lowest, self.waited = float("inf"), 0

    @property
    def reached(self) -> bool:
        """Whether patience is at its end."""
        return bool(self.patience) and self.waited >= self.patience

    def watch(self, losses: Tensor) -> None:
        """Take the next step's losses, shape (B,)."""
        if not self.patience:
            return
        total = float(losses.sum())
        falls = total < self.lowest * (1 - self.tolerance)
        self.lowest, self.waited = (total, 0) if falls else (self.lowest, self.waited + 1)


def _pieces(n: int, batch: int) -> list[slice]:
    size = batch or max(n, 1)
    return [slice(start, start + size) for start in range(0, n, size)]


def _targets(
    model: SplitModel,
    x: Tensor,
    y: Tensor,
    prototypes: Tensor,
    settings: InversionSettings,
    meter: Meter,
) -> Tensor | None:
    """`target_features` of all images, piece by piece; None where nothing is matched."""
    if not settings.fm_weight:
        return None
    targets = []
    for s in _pieces(len(y), settings.batch):
        with meter.counted("target", *x[s].shape), precision(x.device, settings.amp):
            targets.append(target_features(model, x[s], y[s], prototypes[s], settings))
    return torch.cat(targets)


def _gradient(
    model: SplitModel,
    synthetic: Tensor,
    y: Tensor,
    targets: Tensor | None,
    settings: InversionSettings,
    meter: Meter,
    passes: Passes,
) -> tuple[Tensor, Tensor]:
    """Each image's loss (B,) and the gradient (B, C, H, W), piece by piece."""
    found: list[Tensors] = []
    work = partial(_pass, model, settings)
    for s in _pieces(len(y), settings.batch):
        inputs = [x[s] for x in (synthetic, y, targets) if x is not None]
        with meter.counted("step", *inputs[0].shape):
            found.append(passes((id(model), settings), work, *inputs))
    loss, gradient = (torch.cat(column) for column in zip(*found, strict=True))
    return loss, gradient


def _pass(
    model: SplitModel,
    settings: InversionSettings,
    x: Tensor,
    y: Tensor,
    target: Tensor | None = None,
) -> Tensors:
    """The loss (B,) of a piece and its gradient (B, C, H, W)."""
    x = x.detach().requires_grad_()
    with precision(x.device, settings.amp):
        loss = inversion_loss(model, x, y, target, settings)
    return loss.detach(), *torch.autograd.grad(loss.sum(), x)


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
