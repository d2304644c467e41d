"""Everything that can be known to be wrong before training starts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsyn_flwr import build
from fedsyn_flwr.config import Config, defaults
from fedsyn_flwr.data import ImageSet, label_table, listings
from fedsyn_flwr.data.holdout import quotas
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.data.user_set import FOLDER, is_user_set
from fedsyn_flwr.errors import UserError


def check(config: Config, num_clients: int) -> None:
    """Load the data, split it, build the model; raise UserError where one cannot be.

    Raises
    ------
    UserError
        One line for the first mistake found.
    """
    if config.data.partition == SCHEME:
        raise UserError(
            f"partition = {SCHEME!r} is for real SuperNodes, which have data of their own: start "
            "it with flwr run, see docs/deployment.md"
        )
    if num_clients < 1:
        raise UserError(f"num-clients = {num_clients}: at least 1 client is needed")
    _check_folders(config)
    train, test = build.images(config, "train"), build.images(config, "test")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise UserError(
            f"training images are {train.images.shape[1:]}, test images {test.images.shape[1:]}: "
            "both must have one size"
        )
    build.network(config, _shape(train.images))
    parts = build.partitions(config, train, num_clients)
    _check_evaluation(config, num_clients)
    fraction = config.evaluation.client_test_fraction
    if fraction and config.evaluation.federated and not any(_held_out(config, train, parts)):
        raise UserError(
            f"client-test-fraction = {fraction}: no client has images enough to hold one out; "
            "raise it, or give the clients more images"
        )


def _held_out(config: Config, train: ImageSet, parts: list[np.ndarray]) -> Iterator[int]:
    """How many images each client holds out."""
    generator = np.random.default_rng(0)  # their number does not depend on it
    for part in parts:
        counts = np.bincount(train.labels[part])
        share = config.evaluation.client_test_fraction
        yield int(quotas(counts[counts > 0], share, generator).sum())


def _check_evaluation(config: Config, num_clients: int) -> None:
    """Refuse an evaluation by clients that cannot be."""
    wanted = config.evaluation
    if wanted.server_data == "none":
        if not wanted.fraction_evaluate:
            raise UserError(
                'fraction-evaluate = 0.0 with server-data = "none": nobody would measure the '
                "model; set it to a share of the clients"
            )
        if not wanted.client_test_fraction and config.data.partition != SCHEME:
            raise UserError(
                'server-data = "none" with client-test-fraction = 0.0: nobody would have test '
                "images; let the clients hold some out, such as client-test-fraction = 0.2"
            )
    least = defaults()["min-evaluate-clients"]
    if wanted.federated and wanted.min_evaluate_clients not in (least, *range(num_clients + 1)):
        raise UserError(
            f"min-evaluate-clients = {wanted.min_evaluate_clients}: the run has {num_clients} "
            "clients"
        )


def label_notes(config: Config) -> list[str]:
    """A line where the labels of the training and test images are probably not what was meant."""
    if config.data.partition == SCHEME:
        return []
    return [*_empty_folders(config), *_grey_for_colour(config), *_untrained_classes(config)]


def _empty_folders(config: Config) -> list[str]:
    if config.data.dataset != FOLDER:
        return []
    data = config.data
    root, columns = Path(data.data_dir), listings.Columns(data.image_column, data.label_column)
    empty = listings.empty_classes(root, columns)
    notes = [f"note: no image in the class folders {', '.join(empty[:10])}"] if empty else []
    inner = listings.doubtful_classes(root, columns)
    if inner:
        notes.append(
            f"note: all classes have the folders {', '.join(inner[:10])}; if these are the "
            "classes, name the folders above them train and test"
        )
    return notes


def _grey_for_colour(config: Config) -> list[str]:
    """Local images without colour, read as a dataset that has it: three equal channels."""
    data, facts = config.data, build.spec(config)
    if not data.data_dir or is_user_set(data.dataset) or facts.channels == 1:
        return []
    train = build.images(config, "train").images
    if any((image != image[:1]).any() for image in train):  # in colour, most often the first
        return []
    return [
        f"note: the images of {data.data_dir} have 1 channel, {data.dataset} has "
        f"{facts.channels}: each is repeated; dataset = 'folder' takes them as they are"
    ]


def _untrained_classes(config: Config) -> list[str]:
    train, test = build.images(config, "train"), build.images(config, "test")
    classes = len(train.class_names)
    trained, tested = (np.bincount(s.labels, minlength=classes) > 0 for s in (train, test))
    if trained.all():
        return []
    missing = [str(c) for c in np.flatnonzero(~trained)]
    unseen = int((tested & ~trained).sum())
    more = f"; {unseen} of them have test images, which nobody can learn" if unseen else ""
    return [
        f"note: {len(missing)} of the {classes} classes of {config.data.dataset} have no training "
        f"image ({', '.join(missing[:10])}{', …' if len(missing) > 10 else ''}){more}"
    ]


def check_own(config: Config) -> None:
    """The same for a server whose SuperNodes have the training data: it needs test images only.

    Raises
    ------
    UserError
        One line for the first mistake found.
    """
    if config.federation.num_clients < 1:
        raise UserError(
            f"num-clients = 0: with partition = {SCHEME!r} say how many SuperNodes the run has"
        )
    _check_folders(config)
    _check_evaluation(config, config.federation.num_clients)
    labels, test = build.label_list(config), build.images(config, "test")
    if test.class_names != labels and not config.data.transductive_dataset:
        raise UserError(
            f"the test images' classes are not the run's: set labels = "
            f"{','.join(test.class_names)!r}"
        )
    build.network(config, _shape(test.images))


def _check_folders(config: Config) -> None:
    """What is wrong with the keys that name places: folders, device, dataset."""
    for key, value in (
        ("results-dir", config.output.results_dir),
        ("state-dir", config.output.state_dir),
    ):
        if value and not Path(value).is_absolute():
            raise UserError(f"{key} = {value!r} is relative: give an absolute path")
    build.device(config)
    build.spec(config)


def partition_table(config: Config, num_clients: int) -> tuple[np.ndarray, list[str]]:
    """Label counts (K, C) of every client, and the class names."""
    train = build.images(config, "train")
    parts = build.partitions(config, train, num_clients)
    classes = build.spec(config).num_classes
    return label_table(train.labels, parts, classes), train.class_names


def _shape(images: np.ndarray) -> tuple[int, int, int]:
    c, h, w = images.shape[1:]
    return c, h, w
