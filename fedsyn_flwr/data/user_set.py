"""A user's own dataset: a folder, or any repository of the Hugging Face Hub.

Classes, channels, mean and standard deviation come from the data: ``dataset = "folder"`` with
``data-dir``, or ``dataset = "hf:owner/name"`` (``hf:owner/name:config``).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.data import pixels
from fedsyn_flwr.data.cache import ImageSet, Rows, cached
from fedsyn_flwr.data.hub import as_table
from fedsyn_flwr.data.listings import Columns, Listing, local, of_table
from fedsyn_flwr.data.specs import DatasetSpec
from fedsyn_flwr.data.trees import TEST, TRAIN, fingerprint
from fedsyn_flwr.errors import UserError

FOLDER, HUB = "folder", "hf:"
_HOLD_OUT_SEED = 20261207  # any constant: the held-out images are the same in every run


def is_user_set(dataset: str) -> bool:
    """Whether a dataset's facts come from its data."""
    return dataset == FOLDER or dataset.startswith(HUB)


@dataclass(frozen=True)
class UserSet:
    """Where the images lie and how they are read.

    Attributes
    ----------
    dataset, folder : str
        ``folder`` and where, or ``hf:owner/name``.
    columns : Columns
        Which hold images and labels.
    size, channels : int
        What images are brought to; 0 = what they have.
    test_fraction : float
        Share of every class that is held out where there is no test split.
    unseen : bool
        Whether test images may have classes that training images lack.
    """

    dataset: str
    folder: str
    columns: Columns = field(default_factory=Columns)
    size: int = 0
    channels: int = 0
    test_fraction: float = 0.2
    unseen: bool = False

    def identity(self) -> Any:
        """What every decoded split depends on."""
        return [asdict(self), fingerprint(Path(self.folder)) if self.folder else "hub"]

    def load(self, split: str, limit: int = 0, cache_dir: Path | None = None) -> ImageSet:
        """A split, decoded the first time; the first N of a fixed shuffle where limited.

        Raises
        ------
        UserError
            For what cannot be read, in one line.
        """
        prefix = f"{_plain(self.dataset)}-{split}"
        identity = ["user", self.identity(), split, limit]
        return cached(prefix, identity, lambda: survey(self).rows(split, limit), cache_dir)

    def spec(self, limit: int = 0) -> DatasetSpec:
        """The facts that are known of built-in datasets, from the training images."""
        train = self.load("train", limit)
        mean, std = statistics(train.images)
        return DatasetSpec(
            name=self.dataset,
            hub=self.dataset,
            image_column=self.columns.image,
            label_column=self.columns.label,
            num_classes=len(train.class_names),
            channels=train.images.shape[1],
            size=train.images.shape[2],
            mean=mean,
            std=std,
            summary="",
        )


def statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, of pixels in [0, 1], of uint8 (N, C, H, W).

    Exact, from the counts of the 256 values; a channel without contrast has standard deviation 1.
    """
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.zeros(256)
        for start in range(0, len(images), 1024):
            block = images[start : start + 1024, channel]
            counts += np.bincount(block.ravel(), minlength=256)
        mean = float(counts @ levels / counts.sum())
        means.append(mean)
        deviations.append(float(np.sqrt(counts @ (levels - mean) ** 2 / counts.sum())) or 1.0)
    return tuple(means), tuple(deviations)


@dataclass(frozen=True)
class Survey:
    """Both splits of a user's set, with one list of classes.

    Attributes
    ----------
    user : UserSet
        Whose it is.
    parts : dict
        ``train`` and ``test`` → a listing and its rows.
    classes : list of str
        All classes, in order; a class's index is its place.
    channels : int
        1 or 3.
    """

    user: UserSet
    parts: dict[str, tuple[Listing, NDArray[np.int64]]]
    classes: list[str]
    channels: int

    def rows(self, split: str, limit: int) -> Rows:
        """What is to be decoded."""
        listing, rows = self.parts[split]
        if not len(rows) and len(listing.labels):
            raise UserError(
                f"{listing.where}: test-fraction = {self.user.test_fraction} of each class is no "
                "image; raise it, or add a test split"
            )
        if limit:
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:limit])
        place = {name: i for i, name in enumerate(self.classes)}
        labels = np.array([place[name] for name in named(listing)[rows]], np.int64)
        groups = {name: codes[rows] for name, codes in listing.groups.items()}
        return Rows(self.images(listing, rows), labels, self.classes, listing.where, groups)

    def images(self, listing: Listing, rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
        """The pixels, one image after another."""
        for row, data in listing.encoded(rows):
            yield pixels.decode(data, self.channels, self.user.size, place_of(listing, row, data))


def survey(user: UserSet) -> Survey:
    """Find the splits, the columns, the classes and the channels of a user's set.

    Raises
    ------
    UserError
        For what cannot be read, in one line.
    """
    listings = _listings(user)
    train = next((listings[s] for s in TRAIN if s in listings), None)
    test = next((listings[s] for s in TEST if s in listings), None)
    if train is None:
        raise UserError(f"{user.dataset} has no training split among {', '.join(listings)}")
    everything = np.arange(len(train.labels))
    parts = {"train": (train, everything)}
    if test is None:
        kept, held = hold_out(named(train), user.test_fraction)
        parts = {"train": (train, kept), "test": (train, held)}
    else:
        parts["test"] = (test, np.arange(len(test.labels)))
    return Survey(user, parts, classes(user, parts), user.channels or _channels(parts["train"]))


def _listings(user: UserSet) -> dict[str, Listing]:
    if user.dataset == FOLDER:
        return local(Path(user.folder), user.columns)
    import datasets

    name, _, config = user.dataset.removeprefix(HUB).partition(":")
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name):
        raise UserError(f"dataset = {user.dataset!r}: write hf:owner/name or hf:owner/name:config")
    try:
        found = datasets.load_dataset(user.folder or name, config or None)
    except Exception as error:  # many kinds, from four libraries: all mean it could not be had
        first = (str(error).splitlines() or [""])[0][:160]
        raise UserError(
            f"dataset = {user.dataset!r} cannot be loaded from the Hugging Face Hub "
            f"({type(error).__name__}: {first}); go online once, or use dataset = 'folder' with "
            "data-dir"
        ) from error
    return {s.lower(): of_table(as_table(d, name), user.columns) for s, d in found.items()}


def named(listing: Listing) -> NDArray[Any]:
    """Every row's class by name, (N,) of str."""
    labels, names = listing.labels, listing.names
    if names:
        wrong = [i for i in np.unique(labels) if not 0 <= i < len(names)]
        if wrong:
            raise UserError(f"{listing.where}: label {wrong[0]} is none of {len(names)} classes")
        return np.array(names, dtype=object)[labels]
    if labels.dtype.kind == "f":
        raise UserError(f"{listing.where}: labels are fractions; give whole numbers or names")
    return np.array([str(label).strip() for label in labels], dtype=object)


def classes(user: UserSet, parts: dict[str, tuple[Listing, NDArray[np.int64]]]) -> list[str]:
    """All classes in order: as the source declares them, else as numbers, else by name."""
    train, test = (set(named(listing)[rows]) for listing, rows in parts.values())
    declared = parts["train"][0].names
    unseen = sorted(test - train)
    if unseen and not declared and not user.unseen:
        raise UserError(
            f"{parts['test'][0].where}: {len(unseen)} classes of the test images have no training "
            f"image ({', '.join(unseen[:10])}): remove them, or set unseen-test-classes = true"
        )
    if len(train) < 2:
        found = f"one class, {min(train)!r}" if train else "no rows"
        raise UserError(f"{parts['train'][0].where} has {found}; at least 2 classes are needed")
    if declared:
        return list(declared)
    names = sorted(train | test)  # first by name: 01 and 1 are one number, and sets have no order
    numbered = all(name.removeprefix("-").isdecimal() for name in names)
    return sorted(names, key=int) if numbered else names


def hold_out(labels: NDArray[Any], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that stay and rows that are held out: the share of every class, one at least stays."""
    rng = np.random.default_rng(_HOLD_OUT_SEED)
    held: list[int] = []
    for name in sorted(set(labels)):
        rows = rng.permutation(np.flatnonzero(labels == name))
        held.extend(rows[: min(round(len(rows) * share), len(rows) - 1)])
    out = np.sort(np.array(held, np.int64))
    return np.setdiff1d(np.arange(len(labels)), out), out


def _channels(part: tuple[Listing, NDArray[np.int64]]) -> int:
    """3 if any training image has colour."""
    listing, rows = part
    found = (pixels.channels(d, place_of(listing, i, d)) for i, d in listing.encoded(rows))
    return 3 if any(n == 3 for n in found) else 1


def place_of(listing: Listing, row: int, data: bytes | Path) -> str:
    """An image's name in messages."""
    return str(data) if isinstance(data, Path) else f"{listing.where}, row {row}"


def _plain(dataset: str) -> str:
    return json.dumps(dataset).strip('"').replace("/", "-").replace(":", "-")
