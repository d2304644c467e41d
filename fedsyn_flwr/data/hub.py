"""Data that needs no folder: scikit-learn's digits (embedded) and the Hugging Face Hub."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from fedsyn_flwr.data.cache import Rows
from fedsyn_flwr.data.specs import DatasetSpec
from fedsyn_flwr.data.tables import Table, class_names, hold_out, read_table
from fedsyn_flwr.errors import UserError

_BATCH_ROWS = 1024


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 1,797 digits: 1,437 train, 360 test, each class split 80/20, fixed seed."""

    spec: DatasetSpec
    split: str

    def identity(self) -> Any:
        """Return what the rows depend on: scikit-learn carries both the data and the split."""
        return ["digits", version("scikit-learn")]

    def read(self, limit: int) -> Rows:
        """Open the first `limit` rows (0 = all), in the order of the original file."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        pixels, labels = load_digits(return_X_y=True)
        parts = train_test_split(
            np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
        )
        rows = np.sort(parts[self.split == "test"])[: limit or None]
        scaled = np.rint(pixels[rows] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        names = class_names(None, self.spec)
        return Rows(iter(scaled), labels[rows].astype(np.int64), names, "digits")


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face Hub, through `datasets.load_dataset`."""

    spec: DatasetSpec
    split: str

    def identity(self) -> Any:
        """Return the address; a published revision is not looked up, that would need a network."""
        return ["hub", self.spec.hub, self.spec.config]

    def read(self, limit: int) -> Rows:
        """Open the first `limit` rows (0 = all), downloading the data set if need be."""
        held_out = self.spec.test_split is None
        published = self.spec.train_split if self.split == "train" else self.spec.test_split
        table = as_table(
            download(self.spec, published or self.spec.train_split), str(self.spec.hub)
        )
        rows = hold_out(table.num_rows, self.split) if held_out else np.arange(table.num_rows)
        return read_table(table, self.spec, rows[: limit or None])


Source = Digits | Hub


def download(spec: DatasetSpec, split: str) -> Any:
    """Return the split as a `datasets.Dataset`.

    Raises
    ------
    UserError
        When the Hub cannot be reached or does not have it.
    """
    import datasets

    try:
        return datasets.load_dataset(spec.hub, spec.config, split=split)
    except Exception as error:  # many kinds, from four libraries: all mean it could not be had
        first_line = (str(error).splitlines() or [""])[0][:160]
        raise UserError(
            f"dataset {spec.name!r}: cannot load {spec.hub} ({split}) from the Hugging Face Hub "
            f"({type(error).__name__}: {first_line}); go online, or give data-dir a local copy"
        ) from error


def as_table(dataset: Any, where: str) -> Table:
    """View a `datasets.Dataset` as a table, images still encoded."""

    def columns(names: list[str]) -> Any:
        return dataset.select_columns(names).with_format("arrow")[:]

    def batches(name: str) -> Iterator[Any]:
        for batch in dataset.select_columns([name]).with_format("arrow").iter(_BATCH_ROWS):
            yield batch.column(0)

    features = {n: _feature(f) for n, f in dataset.features.to_dict().items()}
    return Table(where, dataset.num_rows, features, columns, batches)


def _feature(declared: Any) -> dict[str, Any]:
    """A feature; a struct of a file's bytes is an image, though nothing says so."""
    if isinstance(declared, dict) and "_type" in declared:
        return declared
    is_file = isinstance(declared, dict) and "bytes" in declared
    return {"_type": "Image" if is_file else "Nested"}
