"""From configuration to the parts of a run: data, partitions, model, device."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedsyn_flwr.compute.device import has_bfloat16
from fedsyn_flwr.config import Config, DataConfig
from fedsyn_flwr.data import DatasetSpec, ImageSet, ResidentData, adapt, get_spec, load
from fedsyn_flwr.data.listings import Columns
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.data.partition_cache import cached_partitions
from fedsyn_flwr.data.partition_file import read_clients
from fedsyn_flwr.data.user_set import FOLDER, UserSet, is_user_set
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import SplitModel, build_model
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import derive


def spec(config: Config) -> DatasetSpec:
    """The facts of the run's dataset: known, or found in a user's own training images.

    Raises
    ------
    UserError
        If there is no such dataset, or it cannot be read.
    """
    return _spec(config.data)


@lru_cache(maxsize=8)
def _spec(data: DataConfig) -> DatasetSpec:
    if not is_user_set(data.dataset):
        return get_spec(data.dataset)
    found = user_set(data).spec(data.limit_train)
    mean = _per_channel("image-mean", data.image_mean, found.channels)
    std = _per_channel("image-std", data.image_std, found.channels)
    return replace(found, mean=mean or found.mean, std=std or found.std)


def user_set(data: DataConfig) -> UserSet:
    """Where a user's own images lie, and how they are read."""
    if data.dataset == FOLDER and not data.data_dir:
        raise UserError("dataset = 'folder' needs data-dir, the folder with the images")
    if data.partition == SCHEME:
        raise UserError(
            f"partition = {SCHEME!r} needs a named dataset, whose classes and size all nodes know; "
            f"{data.dataset!r} takes them from one machine's images"
        )
    return UserSet(
        data.dataset,
        _absolute("data-dir", data.data_dir),
        Columns(data.image_column, data.label_column),
        data.image_size,
        data.image_channels,
        data.test_fraction,
        data.unseen_test_classes,
    )


def _per_channel(key: str, text: str, channels: int) -> tuple[float, ...]:
    """``0.5,0.5,0.5`` as numbers; none where nothing is said."""
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (0.0,) * (channels + 1)
    if text and (len(numbers) != channels or (key == "image-std" and min(numbers) <= 0)):
        raise UserError(
            f"{key} = {text!r}: give {channels} numbers with commas, one per channel"
            + (", above 0" if key == "image-std" else "")
        )
    return numbers


def images(config: Config, split: Literal["train", "test"]) -> ImageSet:
    """The run's training images, or the server's test images, decoded once per machine.

    The server's may be another dataset's (``transductive-dataset``); those are brought to the
    size and the channels of the training images.
    """
    data = config.data
    if split == "train":
        return _own_images(data, "train", data.limit_train)
    own, folder = data.transductive_dataset, data.transductive_data_dir
    if config.evaluation.server_data == "none" and not own and not folder:
        return _nothing(config)
    if not own and not folder:
        return _own_images(data, "test", data.limit_test)
    key, name = "transductive-data-dir", own or data.dataset
    check_classes(config, name)
    test = _load(name, "test", key, folder, data.limit_test)
    channels, size = _training_shape(config)
    adapted = adapt(torch.from_numpy(np.array(test.images)), channels, size)
    return replace(test, images=adapted.numpy())


def _nothing(config: Config) -> ImageSet:
    """No image, of the training images' size: what a server without a test set holds."""
    if config.data.partition == SCHEME:
        known, names = spec(config), label_list(config)
        shape: tuple[int, ...] = (known.channels, known.size, known.size)
    else:
        train = images(config, "train")
        shape, names = train.images.shape[1:], train.class_names
    return ImageSet(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int64), {}, names)


def _training_shape(config: Config) -> tuple[int, int]:
    """Channels and size of the training images; those of the dataset where the server has none."""
    if config.data.partition == SCHEME:
        known = spec(config)
        return known.channels, known.size
    channels, size, _ = images(config, "train").images.shape[1:]
    return channels, size


def label_list(config: Config) -> list[str]:
    """The run's class names: a class's index is its place here, on every node.

    Raises
    ------
    UserError
        If they are not as many as the dataset's classes, or one is there twice.
    """
    classes = spec(config).num_classes
    if not config.data.labels:
        return [str(c) for c in range(classes)]
    names = [name.strip() for name in config.data.labels.split(",")]
    if len(set(names)) != classes or len(names) != classes:
        raise UserError(
            f"labels = {config.data.labels!r} has {len(set(names))} different names, "
            f"{config.data.dataset} has {classes} classes"
        )
    return names


def check_classes(config: Config, other: str) -> None:
    """Refuse a transductive dataset whose classes are not as many as the clients'."""
    dataset = config.data.dataset
    if is_user_set(other):
        raise UserError(
            f"transductive-dataset = {other!r} is none of `fedsyn datasets`; the server's images "
            "of your own set are its test split"
        )
    ours, theirs = spec(config).num_classes, get_spec(other).num_classes
    if ours != theirs:
        raise UserError(
            f"transductive-dataset = {other!r} has {theirs} classes, {dataset} has {ours}"
        )


def _own_images(data: DataConfig, split: Literal["train", "test"], limit: int) -> ImageSet:
    """A split of the run's dataset."""
    if is_user_set(data.dataset):
        return user_set(data).load(split, limit)
    return _load(data.dataset, split, "data-dir", data.data_dir, limit)


def _load(name: str, split: Literal["train", "test"], key: str, folder: str, n: int) -> ImageSet:
    return load(name, split, data_dir=_absolute(key, folder), limit=n)


def _absolute(key: str, folder: str) -> str:
    """A folder, unless it is relative."""
    if folder and not Path(folder).is_absolute():
        raise UserError(
            f"{key} = {folder!r} is relative: give an absolute path "
            "(a run executes in another folder; `fedsyn run` resolves it for you)"
        )
    return folder


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
        shards_per_client=data.shards_per_client,
        groups=_groups(config, train, num_clients),
    )


def _groups(config: Config, train: ImageSet, num_clients: int) -> np.ndarray | None:
    data = config.data
    if data.partition == "csv":
        if not data.partition_file:
            raise UserError("partition = 'csv' needs partition-file, which says who has which row")
        path = Path(_absolute("partition-file", data.partition_file))
        return read_clients(path, len(train.labels), num_clients)
    if data.partition != "natural":
        return None
    column = data.natural_column or spec(config).natural_column or ""
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
        num_classes=spec(config).num_classes,
        norm=model.norm,
        width=model.model_width,
        projection_dim=model.projection_dim,
        seed=derive(config.federation.seed, purpose),
    )


def device(config: Config) -> torch.device:
    """Where this process computes.

    Raises
    ------
    UserError
        If there is no such device, or it lacks what ``amp`` needs.
    """
    found = _device(config.train.device)
    if config.train.amp and not has_bfloat16(found):
        raise UserError(f"amp = true: {found} does not compute in bfloat16; set amp = false")
    return found


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted != "cpu" and not torch.cuda.is_available():
        raise UserError(f"device = {wanted!r}: no CUDA device is visible; use auto or cpu")
    return torch.device(wanted)


def augments(config: Config) -> bool:
    """Whether training images are cropped and flipped."""
    choice = config.data.augment
    return spec(config).augment if choice == "auto" else choice == "crop-flip"


def resident(settings: Config, images: Any, device: torch.device) -> ResidentData:
    """Images on the device, normalised with their dataset's statistics."""
    facts = spec(settings)
    return ResidentData(
        images, facts.mean, facts.std, device=device, channels_last=settings.train.channels_last
    )


def flat_model(
    settings: Config,
    shape: tuple[int, int, int],
    device: torch.device,
    purpose: str = "model",
) -> FlatModel:
    """The run's initial model as flat vectors on the device, or one for another purpose."""
    module = network(settings, shape, purpose).to(device)
    return FlatModel(module, channels_last=settings.train.channels_last)
