"""From configuration to the parts of a run: data, partitions, model, device."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedsyn_flwr.compute.device import has_bfloat16
from fedsyn_flwr.config import Config
from fedsyn_flwr.data import ImageSet, ResidentData, adapt, get_spec, load
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.data.partition_cache import cached_partitions
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import SplitModel, build_model
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import derive


def images(config: Config, split: Literal["train", "test"]) -> ImageSet:
    """The run's training images, or the server's test images, decoded once per machine.

    The server's may be another dataset's (``transductive-dataset``); those are brought to the
    size and the channels of the training images.
    """
    data = config.data
    if split == "train":
        return _load(data.dataset, "train", "data-dir", data.data_dir, data.limit_train)
    own, folder = data.transductive_dataset, data.transductive_data_dir
    if config.evaluation.server_data == "none" and not own and not folder:
        return _nothing(config)
    if not own and not folder:
        return _load(data.dataset, "test", "data-dir", data.data_dir, data.limit_test)
    key, name = "transductive-data-dir", own or data.dataset
    check_classes(data.dataset, name)
    test = _load(name, "test", key, folder, data.limit_test)
    channels, size = _training_shape(config)
    adapted = adapt(torch.from_numpy(np.array(test.images)), channels, size)
    return replace(test, images=adapted.numpy())


def _nothing(config: Config) -> ImageSet:
    """No image, of the training images' size: what a server without a test set holds."""
    if config.data.partition == SCHEME:
        spec, names = get_spec(config.data.dataset), label_list(config)
        shape: tuple[int, ...] = (spec.channels, spec.size, spec.size)
    else:
        train = images(config, "train")
        shape, names = train.images.shape[1:], train.class_names
    return ImageSet(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int64), {}, names)


def _training_shape(config: Config) -> tuple[int, int]:
    """Channels and size of the training images; those of the dataset where the server has none."""
    if config.data.partition == SCHEME:
        spec = get_spec(config.data.dataset)
        return spec.channels, spec.size
    channels, size, _ = images(config, "train").images.shape[1:]
    return channels, size


def label_list(config: Config) -> list[str]:
    """The run's class names: a class's index is its place here, on every node.

    Raises
    ------
    UserError
        If they are not as many as the dataset's classes, or one is there twice.
    """
    classes = get_spec(config.data.dataset).num_classes
    if not config.data.labels:
        return [str(c) for c in range(classes)]
    names = [name.strip() for name in config.data.labels.split(",")]
    if len(set(names)) != classes or len(names) != classes:
        raise UserError(
            f"labels = {config.data.labels!r} has {len(set(names))} different names, "
            f"{config.data.dataset} has {classes} classes"
        )
    return names


def check_classes(dataset: str, other: str) -> None:
    """Refuse a transductive dataset whose classes are not as many as the clients'."""
    ours, theirs = get_spec(dataset).num_classes, get_spec(other).num_classes
    if ours != theirs:
        raise UserError(
            f"transductive-dataset = {other!r} has {theirs} classes, {dataset} has {ours}"
        )


def _load(name: str, split: Literal["train", "test"], key: str, folder: str, n: int) -> ImageSet:
    if folder and not Path(folder).is_absolute():
        raise UserError(
            f"{key} = {folder!r} is relative: give an absolute path "
            "(a run executes in another folder; `fedsyn run` resolves it for you)"
        )
    return load(name, split, data_dir=folder, limit=n)


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
    return get_spec(config.data.dataset).augment if choice == "auto" else choice == "crop-flip"


def resident(settings: Config, images: Any, device: torch.device) -> ResidentData:
    """Images on the device, normalised with their dataset's statistics."""
    spec = get_spec(settings.data.dataset)
    return ResidentData(
        images, spec.mean, spec.std, device=device, channels_last=settings.train.channels_last
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
