"""A run's synthetic images, the real ones of its dataset, and features of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedsyn_flwr import build
from fedsyn_flwr import config as configs
from fedsyn_flwr.data import ImageSet, normalise
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.curves import Run
from fedsyn_flwr.server.tracking import POOL

BATCH = 500
Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """Images, float32 (N, C, H, W) in [0, 1], and labels, int64 (N,)."""

    images: Pixels
    labels: NDArray[np.int64]

    def of_class(self, c: int, most: int) -> Pixels:
        """The first ``most`` images of a class."""
        return self.images[np.flatnonzero(self.labels == c)[:most]]


def read_pool(folder: Path) -> Samples:
    """The synthetic images a run ended with.

    ``pool.safetensors`` holds ``images``, float (N, C, H, W) in [0, 1] or uint8, and ``labels``.

    Raises
    ------
    UserError
        If the run has none, or the file cannot be read.
    """
    try:
        tensors = load_file(folder / POOL)
        images, labels = tensors["images"], tensors["labels"]
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {POOL}: give runs of a method that shares images, with at least one "
            "synthesis"
        ) from None
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{folder / POOL} cannot be read: {error}") from None
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return Samples(pixels.clamp(0, 1).numpy(), labels.to(torch.int64).numpy())


class Source:
    """What a run's configuration names: its training images and its final model.

    Parameters
    ----------
    run : Run
        With the configuration it ran with; local folders named there must still be there.
    """

    def __init__(self, run: Run) -> None:
        self.folder = run.folder
        known = configs.defaults()
        self.config = configs.load({k: v for k, v in run.config.items() if k in known})

    @cached_property
    def training(self) -> ImageSet:
        """The run's training images."""
        return build.images(self.config, "train")

    def real(self, rows: NDArray[np.int64]) -> Pixels:
        """Training images as pixels in [0, 1]."""
        return self.training.images[rows].astype(np.float32) / np.float32(255)

    def nearest(self, images: Pixels, c: int) -> Pixels:
        """The real image of class c with the least pixel distance to each of (n, C, H, W)."""
        rows = np.flatnonzero(self.training.labels == c)
        if not len(rows):
            return np.full_like(images, 1.0)
        wanted = torch.from_numpy(images).flatten(1)
        distances = [
            torch.cdist(wanted, torch.from_numpy(self.real(part)).flatten(1))
            for part in np.split(rows, range(BATCH, len(rows), BATCH))
        ]
        return self.real(rows[torch.cat(distances, dim=1).argmin(dim=1).numpy()])

    @torch.no_grad()
    def features(self, images: Pixels) -> Pixels:
        """Features (N, d) of pixels (N, C, H, W) under the run's final model."""
        spec, x = build.spec(self.config), torch.from_numpy(images)
        parts = (normalise(part * 255, spec.mean, spec.std) for part in x.split(BATCH))
        return torch.cat([self.model.forward_features(part) for part in parts]).numpy()

    @cached_property
    def model(self) -> "build.SplitModel":
        """The final model, in eval mode."""
        model = build.network(self.config, self.training.images.shape[1:])
        path = self.folder / "model.safetensors"
        try:
            model.load_state_dict(load_file(path))
        except (FileNotFoundError, SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} cannot be read: {reason}") from None
        return model.eval()


def drawn_classes(pool: Samples, most: int = 10) -> list[int]:
    """At most so many classes: those with the most images, in order of their numbers."""
    counts = np.bincount(pool.labels)
    order = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    return sorted(order[:most])


def pick(labels: NDArray[np.int64], classes: Sequence[int], most: int) -> NDArray[np.int64]:
    """Positions of at most ``most`` of each class, evenly spread over what there is."""
    chosen = []
    for c in classes:
        rows = np.flatnonzero(labels == c)
        steps = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
        chosen.append(rows[steps])
    return np.concatenate(chosen)
