"""The ACGAN that FedGAN's clients train together (Odena et al., arXiv 1610.09585).

Pure PyTorch. Images are in [-1, 1] here; any height and width from 8, any number of channels.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsyn_flwr.compute.adam import Adam
from fedsyn_flwr.compute.device import to_device
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.models.layers import num_groups

SLOPE = 0.2  # of LeakyReLU below 0, as in DCGAN
SMALLEST = 4  # pixels of the smallest map's shorter side, at least


@dataclass(frozen=True)
class GANSettings:
    """The networks' sizes and Adam's: ``noise`` numbers in z, ``width`` channels at full size."""

    noise: int
    width: int
    lr: float
    beta1: float


class Stages(NamedTuple):
    """How often the map is doubled, and its smallest size (h, w)."""

    doublings: int
    height: int
    width: int


def stages(height: int, width: int) -> Stages:
    """8×8 → one doubling of 4×4, 28×28 → two of 7×7, 32×32 → three of 4×4; 30×30 → two of 8×8."""
    n = 0
    while min(height, width) >= SMALLEST * 2 ** (n + 1):
        n += 1
    return Stages(n, ceil(height / 2**n), ceil(width / 2**n))


class Generator(nn.Module):
    """G(z, y): noise and one-hot class → linear → doublings by transposed convolution → tanh.

    Parameters
    ----------
    num_classes, noise, width : int
        C, the length of z, and the channels of the last map before the image.
    shape : tuple of int
        (C, H, W) of the images; a larger map is cut to that.
    """

    def __init__(self, num_classes: int, noise: int, width: int, shape: tuple[int, int, int]):
        super().__init__()
        self.num_classes, self.noise, self.shape = num_classes, noise, shape
        plan = stages(*shape[1:])
        channels = [width * 2**i for i in reversed(range(plan.doublings))]
        self.smallest = (channels[0], plan.height, plan.width)
        self.project = nn.Linear(noise + num_classes, prod(self.smallest))
        layers: list[nn.Module] = [_norm(channels[0]), nn.ReLU()]
        for before, after in zip(channels, [*channels[1:], shape[0]], strict=True):
            layers.append(nn.ConvTranspose2d(before, after, 4, stride=2, padding=1))
            if after is not shape[0]:
                layers += [_norm(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Noise (B, noise) and classes (B,) → images (B, C, H, W) in [-1, 1]."""
        given = torch.cat([z, F.one_hot(y, self.num_classes).to(z.dtype)], dim=1)
        images: Tensor = self.layers(self.project(given).view(-1, *self.smallest)).tanh()
        return images[:, :, : self.shape[1], : self.shape[2]]

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """z ~ N(0, I), shape (n, noise), from a CPU generator, on the network's device."""
        z = torch.randn(n, self.noise, generator=generator)
        return to_device(z, self.project.weight.device)


class Verdict(NamedTuple):
    """Of each image: logit of being real (B,), logits of the classes (B, C)."""

    real: Tensor
    classes: Tensor


class Discriminator(nn.Module):
    """Strided convolutions with two heads: real or generated, and which class."""

    def __init__(self, num_classes: int, width: int, shape: tuple[int, int, int]):
        super().__init__()
        plan = stages(*shape[1:])
        channels = [shape[0], *(width * 2**i for i in range(plan.doublings))]
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(pairwise(channels)):
            layers.append(nn.Conv2d(before, after, 4, stride=2, padding=1))
            layers += [_norm(after)] if i else []
            layers.append(nn.LeakyReLU(SLOPE))
        self.layers = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            size = self.layers(torch.zeros(1, *shape)).shape[1]
        self.real, self.classes = nn.Linear(size, 1), nn.Linear(size, num_classes)

    def forward(self, x: Tensor) -> Verdict:
        """Images (B, C, H, W) in [-1, 1]."""
        h = self.layers(x)
        return Verdict(self.real(h).squeeze(1), self.classes(h))


def _norm(channels: int) -> nn.Module:
    """GroupNorm: no running statistics of a client's few classes that averaging would blur."""
    return nn.GroupNorm(num_groups(channels), channels)


class GAN(NamedTuple):
    """Both networks as flat vectors."""

    generator: FlatModel[Generator]
    discriminator: FlatModel[Discriminator]


def build_gan(
    settings: GANSettings,
    num_classes: int,
    shape: tuple[int, int, int],
    *,
    seed: int,
    device: torch.device,
) -> GAN:
    """Freshly initialised networks; the same seed gives the same bits."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        generator = Generator(num_classes, settings.noise, settings.width, shape)
        discriminator = Discriminator(num_classes, settings.width, shape)
        for module in (generator, discriminator):
            module.apply(_initialise)
    return GAN(FlatModel(generator.to(device)), FlatModel(discriminator.to(device)))


def _initialise(module: nn.Module) -> None:
    """DCGAN's: N(0, 0.02²) for weights, 0 for biases."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.02)
        module.bias.data.zero_()  # type: ignore[union-attr]


def discriminator_loss(real: Verdict, y: Tensor, generated: Verdict, drawn: Tensor) -> Tensor:
    """-(L_S + L_C): tell real from generated, and the class of both; means over the batches."""
    source = F.softplus(-real.real).mean() + F.softplus(generated.real).mean()
    classes = F.cross_entropy(real.classes, y) + F.cross_entropy(generated.classes, drawn)
    return source + classes


def generator_loss(generated: Verdict, drawn: Tensor) -> Tensor:
    """-(L_C - L_S) in its non-saturating form: be taken for real, and for the class drawn."""
    return F.softplus(-generated.real).mean() + F.cross_entropy(generated.classes, drawn)


class Trainer:
    """Alternating steps of Adam on both networks.

    Parameters
    ----------
    source : torch.Generator
        Of the noise; a CPU generator.
    """

    def __init__(self, gan: GAN, settings: GANSettings, source: torch.Generator) -> None:
        self.gan, self.source = gan, source
        self.adams = [Adam(network.trainable, settings.lr, settings.beta1) for network in gan]

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of each on a batch of real images in [-1, 1]; returns both losses, (2,).

        The classes to be generated are the batch's own, so they are drawn as the client's are.
        """
        g, d = self.gan
        generated = g.module(g.module.draw(len(y), self.source), y)
        d.grad.zero_()
        d_loss = discriminator_loss(d.module(x), y, d.module(generated.detach()), y)
        d_loss.backward()
        self.adams[1].step(d.grad)
        g.grad.zero_()
        d.module.requires_grad_(False)
        g_loss = generator_loss(d.module(generated), y)
        g_loss.backward()
        d.module.requires_grad_(True)
        self.adams[0].step(g.grad)
        return torch.stack([g_loss.detach(), d_loss.detach()])


def as_images(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as the networks see them, in [-1, 1]."""
    return 2 * pixels - 1


def as_pixels(images: Tensor) -> Tensor:
    """Undo `as_images`."""
    return (images + 1) / 2


COLLAPSED = 0.2
"""Spread within a class over that of all images, at most which a class counts as collapsed."""


def collapsed(pixels: np.ndarray, labels: np.ndarray) -> list[int]:
    """Classes whose images hardly differ from each other.

    Parameters
    ----------
    pixels : ndarray
        Shape (N, C, H, W), any scale.
    labels : ndarray
        Shape (N,).

    Returns
    -------
    list of int
        The classes with two images or more whose root mean square distance to their own mean is
        at most `COLLAPSED` times that of all images to the mean of all.
    """
    x = pixels.reshape(len(pixels), -1).astype(np.float64)
    limit = COLLAPSED * _spread(x)
    classes = [int(c) for c in np.unique(labels)]
    members = {c: x[labels == c] for c in classes}
    return [c for c in classes if len(members[c]) > 1 and _spread(members[c]) <= limit]


def _spread(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x - x.mean(axis=0)).mean()))
