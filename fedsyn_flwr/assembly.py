"""From configuration to the parts of a run: data, partitions, model, device."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedsyn_flwr.config import Config
from fedsyn_flwr.data import ImageSet, get_spec, load
from fedsyn_flwr.data.partition_cache import cached_partitions
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import SplitModel, build_model
from fedsyn_flwr.rng import derive


def images(config: Config, split: Literal["train", "test"]) -> ImageSet:
    """The run's training or test images, decoded once per machine."""
    data = config.data
    if data.data_dir and not Path(data.data_dir).is_absolute():
        raise UserError(
            f"data-dir = {data.data_dir!r} is relative: give an absolute path "
            "(a run executes in another folder; `fedsyn run` resolves it for you)"
        )
    limit = data.limit_train if split == "train" else data.limit_test
    return load(data.dataset, split, data_dir=data.data_dir, limit=limit)


def partitions(config: Config, train: ImageSet, num_clients: int) -> list[np.ndarray]:
    """Sample indices of every client: disjoint, complete, a function of the seed."""
    data = config.data
    return cached_partitions(
        train.labels,
        num_clients,
        data.partition,
        seed=derive(config.federation.seed, "partition") % 2**32,
        dirichlet_alpha=data.dirichlet_alpha,
        classes_per_client=data.classes_per_client,
        groups=_groups(config, train),
    )


def _groups(config: Config, train: ImageSet) -> np.ndarray | None:
    data = config.data
    if data.partition != "natural":
        return None
    column = data.natural_column or get_spec(data.dataset).natural_column or ""
    if column not in train.groups:
        raise UserError(
            f"natural-column = {column!r}: {data.dataset} has "
            f"{', '.join(train.groups) or 'no such column'}"
        )
    return train.groups[column]


def network(config: Config, in_shape: tuple[int, int, int], purpose: str = "model") -> SplitModel:
    """The run's model with its initial weights, a function of the seed.

    Another ``purpose`` than the run's model gives it other weights.
    """
    model = config.model
    return build_model(
        model.model,
        in_shape=in_shape,
        num_classes=get_spec(config.data.dataset).num_classes,
        norm=model.norm,
        width=model.model_width,
        projection_dim=model.projection_dim,
        seed=derive(config.federation.seed, purpose),
    )


def device(config: Config) -> torch.device:
    """Where this process computes."""
    wanted = config.train.device
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted != "cpu" and not torch.cuda.is_available():
        raise UserError(f"device = {wanted!r}: no CUDA device is visible; use auto or cpu")
    return torch.device(wanted)


def augments(config: Config) -> bool:
    """Whether training images are cropped and flipped."""
    choice = config.data.augment
    return get_spec(config.data.dataset).augment if choice == "auto" else choice == "crop-flip"
