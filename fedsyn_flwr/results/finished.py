"""A run's folder as something to work with: its configuration, its model, its images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedsyn_flwr import build
from fedsyn_flwr import config as configs
from fedsyn_flwr.data import ImageSet, normalise
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.report.files import read_config, read_status

BATCH = 500
MODEL = "model.safetensors"
Split = Literal["train", "test"]


@dataclass(frozen=True)
class Finished:
    """A run that left a folder; nothing is read before it is asked for.

    Attributes
    ----------
    folder : Path
        The run's folder.
    keys : dict
        The configuration it ran with.
    """

    folder: Path
    keys: dict[str, Any]

    @cached_property
    def config(self) -> configs.Config:
        """The same, checked; keys that this version does not know are left out."""
        known = configs.defaults()
        return configs.load({k: v for k, v in self.keys.items() if k in known})

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images the model takes."""
        spec, data = build.spec(self.config), self.config.data
        if not data.data_dir or data.partition == SCHEME:
            return spec.channels, spec.size, spec.size
        return cast(tuple[int, int, int], build.images(self.config, "train").images.shape[1:])

    @cached_property
    def model(self) -> SplitModel:
        """The final model on the CPU, in eval mode.

        Raises
        ------
        UserError
            If the run has no model yet, or another version's.
        """
        path = self.folder / MODEL
        if not path.is_file():
            status = read_status(self.folder).get("status", "of unknown state")
            raise UserError(f"{self.folder} has no {MODEL} (the run is {status}): finish it first")
        model = build.network(self.config, self.shape)
        try:
            model.load_state_dict(load_file(path))
        except (SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} cannot be read: {reason}") from None
        return model.eval()

    def images(self, split: Split, data_dir: str = "") -> ImageSet:
        """The run's images of a split, or those of another folder.

        Raises
        ------
        UserError
            If they are not there, or of another shape than the model's.
        """
        config = self.config
        if data_dir:
            elsewhere = {
                "data-dir": str(Path(data_dir).expanduser().absolute()),
                "transductive-dataset": "",
                "transductive-data-dir": "",
            }
            config = configs.load({**config.flat(), **elsewhere})
        found = build.images(config, split)
        if found.images.shape[1:] != self.shape:
            raise UserError(
                f"the {split} images are {found.images.shape[1:]}, the run's model takes "
                f"{self.shape}: give images of that shape"
            )
        return found

    @cached_property
    def class_names(self) -> list[str]:
        """One per class; numbers where the dataset that names them is not at hand."""
        if self.config.data.labels:
            return build.label_list(self.config)
        try:
            return list(build.images(self.config, "test").class_names)
        except UserError:
            return build.label_list(self.config)

    @torch.no_grad()
    def logits(self, images: NDArray[np.uint8]) -> Tensor:
        """Logits (N, K), float32, of pixels, uint8 (N, C, H, W)."""
        spec = build.spec(self.config)
        parts = [
            self.model(normalise(torch.tensor(part), spec.mean, spec.std))
            for part in np.split(images, range(BATCH, len(images), BATCH))
        ]
        return torch.cat(parts)


def load_run(folder: str | Path) -> Finished:
    """Open a run's folder.

    Raises
    ------
    UserError
        If there is no such folder, or no run in it.
    """
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: give the folder of a run")
    keys = read_config(path)
    if not keys:
        raise UserError(f"{path} holds no run (no config.json): give the folder of a run")
    return Finished(path, keys)


def read_pictures(run: Finished, files: Sequence[str]) -> NDArray[np.uint8]:
    """Image files as the model takes them: uint8 (N, C, H, W), resized where they are not so.

    Raises
    ------
    UserError
        For the first file that is missing or no image.
    """
    from fedsyn_flwr.data import adapt
    from fedsyn_flwr.data.tables import decode

    channels, size, _ = run.shape
    found = []
    for file in files:
        if not Path(file).is_file():
            raise UserError(f"{file} is not a file: give image files")
        pixels = torch.tensor(decode(str(file), channels, str(file)))[None]
        fits = tuple(pixels.shape[1:]) == run.shape
        found.append((pixels if fits else adapt(pixels, channels, size)).numpy())
    return np.concatenate(found)
