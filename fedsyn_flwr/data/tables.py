"""Reading image tables: Arrow batches with Hugging Face features, from parquet or from the Hub."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.data.cache import Rows
from fedsyn_flwr.data.specs import DatasetSpec
from fedsyn_flwr.errors import UserError

_HOLD_OUT = 0.1
_CHANNELS = {"1": 1, "L": 1, "I": 1, "I;16": 1, "F": 1, "RGB": 3, "RGBA": 3, "CMYK": 3}
_HOLD_OUT_SEED = 20130817  # any constant: the held-out rows must never change


@dataclass(frozen=True)
class Table:
    """An image table whose columns are read on demand.

    `features` is `datasets.Features.to_dict()`: column name to a dict with `_type`. `columns`
    reads whole columns (no pixels); `batches` streams one column as Arrow arrays.
    """

    where: str
    num_rows: int
    features: dict[str, dict[str, Any]]
    columns: Callable[[list[str]], Any]
    batches: Callable[[str], Iterator[Any]]


def read_table(
    table: Table, spec: DatasetSpec, rows: NDArray[np.int64], convert: bool = True
) -> Rows:
    """Open the given rows (sorted indices) of a table for decoding.

    Raises
    ------
    UserError
        When the image or the label column cannot be told, or a label is out of range.
    """
    image, label = _image_column(table, spec), _label_column(table, spec)
    others = [n for n, f in table.features.items() if n not in (image, label) and is_key(f)]
    columns = table.columns([label, *others])
    labels = check_labels(_labels(columns[label], label, table.where), spec, table.where)
    groups = {n: codes(columns[n])[rows] for n in others if columns[n].null_count == 0}
    names = class_names(table.features[label].get("names"), spec)
    pixels = (
        decode(data, spec.channels, f"{table.where}, row {i}", convert)
        for i, data in encoded(table.batches(image), rows)
    )
    return Rows(pixels, labels[rows], names, table.where, groups)


def hold_out(num_rows: int, split: str) -> NDArray[np.int64]:
    """Return the rows of `split` where only a train split is published: a fixed random tenth.

    The tenth is drawn over all rows, so nearly every writer is in both parts.
    """
    order = np.random.default_rng(_HOLD_OUT_SEED).permutation(num_rows)
    cut = int(num_rows * _HOLD_OUT)
    return np.sort(order[:cut] if split == "test" else order[cut:]).astype(np.int64)


def check_labels(labels: NDArray[np.int64], spec: DatasetSpec, where: str) -> NDArray[np.int64]:
    """Return the labels, or raise UserError naming the first one outside [0, num_classes)."""
    wrong = np.flatnonzero((labels < 0) | (labels >= spec.num_classes))
    if len(wrong):
        raise UserError(
            f"{where}: label {labels[wrong[0]]} in row {wrong[0]} is outside "
            f"0..{spec.num_classes - 1} of dataset {spec.name!r}; choose the dataset that fits"
        )
    return labels


def class_names(names: list[str] | None, spec: DatasetSpec) -> list[str]:
    """Return exactly num_classes names; numbers stand in for those the source does not give."""
    given = list(names or [])[: spec.num_classes]
    return given + [str(c) for c in range(len(given), spec.num_classes)]


def decode(
    data: bytes | str | None, channels: int, where: str, convert: bool = True
) -> NDArray[np.uint8]:
    """Decode an image file's bytes (or path) to uint8 (C, H, W), C = 1 (grey) or 3 (RGB).

    Without ``convert``, an image of the other kind is refused.
    """
    from PIL import Image

    if data is None:
        raise UserError(f"{where}: there is no image; remove the row")
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
            found = channels if convert else _CHANNELS.get(image.mode, channels)
            array = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, SyntaxError, TypeError, Image.DecompressionBombError) as error:
        raise UserError(f"{where}: the image cannot be decoded; replace or remove it") from error
    if found != channels:
        raise UserError(
            f"{where} has {found} channel(s), the run's images have {channels}: "
            "convert it, or choose the dataset that fits"
        )
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _image_column(table: Table, spec: DatasetSpec) -> str:
    images = [name for name, feature in table.features.items() if feature["_type"] == "Image"]
    if spec.image_column in images:
        return spec.image_column
    if len(images) == 1:
        return images[0]
    raise UserError(
        f"{table.where} has {len(images)} image columns among {_list(table)}; "
        "exactly one column must be an Image feature"
    )


def _label_column(table: Table, spec: DatasetSpec) -> str:
    if spec.label_column in table.features:
        return spec.label_column
    labels = [name for name, feature in table.features.items() if feature["_type"] == "ClassLabel"]
    if len(labels) == 1:
        return labels[0]
    raise UserError(
        f"{table.where} has no column {spec.label_column!r} and {len(labels)} ClassLabel columns "
        f"among {_list(table)}; choose the dataset whose label column it has"
    )


def _list(table: Table) -> str:
    return ", ".join(table.features)


def is_key(feature: dict[str, Any]) -> bool:
    """Whether a column may serve as a partition key: whole numbers, strings or class labels."""
    dtype = str(feature.get("dtype", ""))
    return feature["_type"] == "ClassLabel" or (
        feature["_type"] == "Value" and dtype.startswith(("int", "uint", "string", "large_string"))
    )


def _labels(column: Any, name: str, where: str) -> NDArray[np.int64]:
    values = column.to_numpy() if column.null_count == 0 else np.array([None])
    if values.dtype.kind not in "iu":
        raise UserError(f"{where}: label column {name!r} must hold a whole number in every row")
    return values.astype(np.int64)


def codes(column: Any) -> NDArray[np.int64]:
    return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.int64)


def encoded(batches: Iterator[Any], rows: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
    """Yield (row, image file bytes) for the sorted `rows`; reads no batch beyond the last."""
    start = 0
    for batch in batches:
        first, last = np.searchsorted(rows, [start, start + len(batch)])
        for row in rows[first:last]:
            yield int(row), _file(batch[int(row) - start].as_py())
        start += len(batch)
        if last == len(rows):
            return


def _file(value: Any) -> Any:
    """An image's bytes; where a table has its path only, that; None where it has neither."""
    if not isinstance(value, dict):
        return value
    path = value.get("path")
    return Path(path) if value.get("bytes") is None and path else value.get("bytes")
