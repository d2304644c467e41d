"""What a user's own dataset holds, split by split, before an image is decoded."""

import csv
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.data import trees
from fedsyn_flwr.data.folders import open_parquet
from fedsyn_flwr.data.tables import Table, codes, encoded, is_key
from fedsyn_flwr.data.trees import TRAIN
from fedsyn_flwr.errors import UserError

FILE_COLUMNS = ("filename", "file_name", "file", "image", "path")
LABEL_COLUMNS = ("label", "labels", "class", "fine_label", "target")

Encoded = Callable[[NDArray[np.int64]], Iterator[tuple[int, bytes | Path]]]


@dataclass(frozen=True)
class Listing:
    """One split.

    Attributes
    ----------
    labels : array (N,)
        As the source has them: strings or whole numbers.
    names : list of str or None
        What the numbers stand for, where the source says it.
    encoded : callable
        Sorted rows → (row, file's bytes or path), one after another.
    groups : dict
        The other columns that may serve as partition keys, as codes.
    where : str
        The source, for messages.
    """

    labels: NDArray[Any]
    names: list[str] | None
    encoded: Encoded
    where: str
    groups: dict[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are meant; empty where they are to be found."""

    image: str = ""
    label: str = ""


def local(root: Path, columns: Columns) -> dict[str, Listing]:
    """The splits of a local folder by name: parquet files, CSVs of files, or folders of images.

    Raises
    ------
    UserError
        If it is none of these.
    """
    tables = trees.parquet_splits(root)
    if tables:
        return {s: of_table(open_parquet(files), columns) for s, files in tables.items()}
    lists = csv_splits(root, columns)
    if lists:
        return {s: of_csv(file, columns) for s, file in lists.items()}
    return {s: of_folders(d) for s, d in trees.split_folders(root).items()}


def csv_splits(root: Path, columns: Columns) -> dict[str, Path]:
    """Split → CSV: ``train.csv`` and ``test.csv``, or one in each split's folder; none: empty.

    Raises
    ------
    UserError
        If it cannot be told which of several is meant.
    """
    beside = {trees.split_of(f.stem): f for f in _csv_files(root, columns)}
    if any(split in beside for split in TRAIN):
        return {split: file for split, file in beside.items() if split}
    found = {s: _csv_files(d, columns) for s, d in trees.split_folders(root).items()}
    for files in found.values():
        if len(files) > 1:
            names = ", ".join(f.name for f in files)
            raise UserError(f"{root} has {names}: leave one, or name them train.csv and test.csv")
    return {s: files[0] for s, files in found.items()} if all(found.values()) else {}


def _csv_files(folder: Path, columns: Columns) -> list[Path]:
    """The CSVs that list files; another one is passed over beside folders of classes."""
    found = [f for f in sorted(folder.glob("*.csv")) if not f.name.startswith(".")]
    usual = (columns.image,) if columns.image else FILE_COLUMNS
    fitting = [f for f in found if any(n in usual or n.lower() in usual for n in _read(f)[0])]
    classes = [d for d in trees.folders(folder) if found and trees.images(d)]
    return fitting if fitting or len(classes) > 1 else found


def of_folders(root: Path) -> Listing:
    """A folder per class."""
    files = [(f, d.name) for d in trees.folders(root) for f in trees.images(d)]
    if not files:
        raise UserError(f"{root} has no images in <class>/; expected <class>/*.png, *.jpg, …")
    return _of_files([f for f, _ in files], [name for _, name in files], str(root))


def of_csv(file: Path, columns: Columns) -> Listing:
    """Rows of file name and label; names are relative to the CSV's folder.

    Raises
    ------
    UserError
        If a column is missing, a row has no label, or a file is not there.
    """
    header, rows = _read(file)
    image = _pick(columns.image, FILE_COLUMNS, header, "image-column", file)
    others = [name for name in header if name != image]
    label = _pick(columns.label, LABEL_COLUMNS, others, "label-column", file)
    for number, row in rows:
        if not os.path.isfile(file.parent / row[image]):
            raise UserError(f"{file}, line {number} names {row[image][:99]!r}, which is not there")
        if not row[label]:
            raise UserError(f"{file}, line {number} has no label")
    keys = [n for n in others if n != label and all(row[n] for _, row in rows)]
    groups = {n: np.unique([r[n] for _, r in rows], return_inverse=True)[1] for n in keys}
    files = [file.parent / row[image] for _, row in rows]
    return _of_files(files, [row[label] for _, row in rows], str(file), groups)


def _read(file: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Header, and the rows with their line numbers; commas, semicolons or tabs part values."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            first = text.readline()
            text.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
            lines = [(reader.line_num, [v.strip() for v in values]) for values in reader if values]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} is not a CSV in UTF-8 ({error}); save it as one") from error
    header = lines[0][1] if lines else []
    for number, values in lines[1:]:
        if len(values) > len(header):
            raise UserError(
                f"{file}, line {number} has {len(values)} values for {len(header)} columns; "
                "put quotation marks around a value with a comma in it"
            )
    blank = [""] * len(header)
    return header, [(n, dict(zip(header, values + blank, strict=False))) for n, values in lines[1:]]


def of_table(table: Table, columns: Columns) -> Listing:
    """A table with a column of images and one of labels."""
    found = {n: f for n, f in table.features.items() if f["_type"] == "Image"}
    image = _pick(columns.image, ("image", "img"), list(found), "image-column", table.where)
    keys = [n for n, f in table.features.items() if n != image and is_key(f)]
    label = _label(table, columns.label, image, keys)
    values = table.columns(list(dict.fromkeys([label, *keys])))
    return Listing(
        labels=_label_values(values[label], label, table.where),
        names=table.features[label].get("names"),
        encoded=lambda rows: encoded(table.batches(image), rows),
        where=table.where,
        groups={n: codes(values[n]) for n in keys if n != label and not values[n].null_count},
    )


def _label(table: Table, wanted: str, image: str, keys: list[str]) -> str:
    """The column of the labels; one of a usual name goes before the only one that would do."""
    others = [n for n in table.features if n != image]
    classes = [n for n in others if table.features[n]["_type"] == "ClassLabel"]
    named = [n for n in others if n.lower() in LABEL_COLUMNS]
    return _pick(wanted, LABEL_COLUMNS, classes or named or keys, "label-column", table.where, keys)


def _label_values(column: Any, name: str, where: str) -> NDArray[Any]:
    """The labels (N,): strings, whole numbers or truth values, also as categories or floats."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if pa.types.is_nested(kind) or pa.types.is_temporal(kind) or "binary" in str(kind):
        raise UserError(f"{where}: {name!r} holds {kind}, no labels; set label-column")
    labels = column.to_numpy()
    empty = int(column.null_count)
    if labels.dtype.kind == "f":
        empty = int(np.isnan(labels).sum())
    elif labels.dtype == object:
        empty = sum(label is None or not str(label).strip() for label in labels)
    if empty:
        raise UserError(f"{where}: {name!r} is empty in {empty} rows; fill or remove them")
    whole = labels.dtype.kind == "f" and (labels == np.rint(labels)).all()
    return labels.astype(np.int64) if whole else labels


def _of_files(
    files: list[Path],
    labels: list[str],
    where: str,
    groups: dict[str, NDArray[np.int64]] | None = None,
) -> Listing:
    rows = np.array(labels, dtype=object)
    return Listing(rows, None, lambda rows: ((i, files[i]) for i in rows), where, groups or {})


def _pick(
    wanted: str, usual: tuple[str, ...], there: list[str], key: str, where: Any, more: Any = ()
) -> str:
    """The column that is meant: the one asked for, one of the usual names, or the only one."""
    if wanted:
        if wanted in (*there, *more):
            return wanted
    elif named := [name for name in there if name.lower() in usual]:
        return min(named, key=lambda name: usual.index(name.lower()))
    elif len(there) == 1:
        return there[0]
    has = ", ".join(dict.fromkeys([*there, *more])) or "none that would do"
    raise UserError(f"{where}: {key} = {wanted!r} does not say which column is meant; it has {has}")


def empty_classes(root: Path, columns: Columns) -> list[str]:
    """Class folders in which there is no image."""
    if trees.parquet_splits(root) or csv_splits(root, columns):
        return []
    classes = [d for base in trees.split_folders(root).values() for d in trees.folders(base)]
    return sorted(
        {d.name for d in classes if not trees.images(d)}
        - {d.name for d in classes if trees.images(d)}
    )


def doubtful_classes(root: Path, columns: Columns) -> list[str]:
    """Folders that are probably the classes, where what lies above them was taken for these."""
    if trees.parquet_splits(root) or csv_splits(root, columns):
        return []
    return sorted({n for base in trees.split_folders(root).values() for n in trees.alike(base)})
