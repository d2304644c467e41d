"""What a user's own dataset holds, split by split, before an image is decoded."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.data.folders import open_parquet, stamps
from fedsyn_flwr.data.tables import Table, codes, encoded, is_key
from fedsyn_flwr.errors import UserError

TRAIN = ("train", "training")
TEST = ("test", "testing", "validation", "valid", "val", "dev", "eval")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
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
    """The splits of a local folder by name: parquet files, a CSV of files, or folders of images.

    Raises
    ------
    UserError
        If it is none of these.
    """
    tables = parquet_splits(root)
    if tables:
        return {s: of_table(open_parquet(files), columns) for s, files in tables.items()}
    parts = split_folders(root)
    lists = {s: _csv_file(d) for s, d in parts.items()}
    if all(lists.values()):
        return {s: of_csv(file, columns) for s, file in lists.items() if file}
    return {s: of_folders(d) for s, d in parts.items()}


def fingerprint(root: Path) -> Any:
    """What the listings of a local folder depend on: its files' names, sizes and times."""
    if not root.is_dir():
        raise UserError(f"data-dir {root} is not a folder; give an existing folder")
    return stamps(sorted(f for f in root.rglob("*") if f.is_file() and not _hidden(f, root)))


def split_folders(root: Path) -> dict[str, Path]:
    """Split → folder; a folder without any of the usual names is one split, ``train``."""
    known = {d.name.lower(): d for d in _folders(root) if d.name.lower() in (*TRAIN, *TEST)}
    return known if any(name in known for name in TRAIN) else {"train": root}


def parquet_splits(root: Path) -> dict[str, list[Path]]:
    """Split → parquet files: named after it, or in a folder of its name; else all one split."""
    files = [f for f in sorted(root.rglob("*.parquet")) if not _hidden(f, root)]
    found: dict[str, list[Path]] = {}
    for file in files:
        words = {file.stem.split("-")[0].lower(), file.parent.name.lower()}
        split = next((s for s in (*TRAIN, *TEST) if s in words), "")
        found.setdefault(split, []).append(file)
    return {"train": files} if files and "" in found else found


def of_folders(root: Path) -> Listing:
    """A folder per class."""
    files = [(f, d.name) for d in _folders(root) for f in _images(d)]
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
    with file.open(newline="", encoding="utf-8-sig") as text:
        rows = list(csv.DictReader(text))
    header = list(rows[0]) if rows else []
    image = _pick(columns.image, FILE_COLUMNS, header, "image-column", file)
    label = _pick(columns.label, LABEL_COLUMNS, header, "label-column", file)
    files = [file.parent / row[image] for row in rows]
    for number, (path, row) in enumerate(zip(files, rows, strict=True), start=2):
        if not path.is_file() or not row[label]:
            what = "has no label" if path.is_file() else f"names {row[image]!r}, which is not there"
            raise UserError(f"{file}, line {number} {what}")
    return _of_files(files, [row[label] for row in rows], str(file))


def of_table(table: Table, columns: Columns) -> Listing:
    """A table with a column of images and one of labels."""
    found = {n: f for n, f in table.features.items() if f["_type"] == "Image"}
    image = _pick(columns.image, ("image", "img"), list(found), "image-column", table.where)
    keys = [n for n, f in table.features.items() if n != image and is_key(f)]
    classes = [n for n in keys if table.features[n]["_type"] == "ClassLabel"]
    label = _pick(columns.label, LABEL_COLUMNS, classes or keys, "label-column", table.where, keys)
    values = table.columns(keys)
    if values[label].null_count:
        raise UserError(f"{table.where}: {label!r} is empty in {values[label].null_count} rows")
    return Listing(
        labels=values[label].to_numpy(),
        names=table.features[label].get("names"),
        encoded=lambda rows: encoded(table.batches(image), rows),
        where=table.where,
        groups={n: codes(values[n]) for n in keys if n != label and not values[n].null_count},
    )


def _of_files(files: list[Path], labels: list[str], where: str) -> Listing:
    return Listing(
        np.array(labels, dtype=object), None, lambda rows: ((i, files[i]) for i in rows), where
    )


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


def _csv_file(folder: Path) -> Path | None:
    files = [f for f in sorted(folder.glob("*.csv")) if not f.name.startswith(".")]
    return files[0] if files else None


def _folders(root: Path) -> list[Path]:
    return sorted(d for d in root.iterdir() if d.is_dir() and not d.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(
        f
        for f in folder.rglob("*")
        if f.is_file() and f.suffix.lower() in SUFFIXES and not _hidden(f, folder)
    )


def empty_classes(root: Path) -> list[str]:
    """Class folders in which there is no image."""
    if parquet_splits(root):
        return []
    folders = {split: d for split, d in split_folders(root).items() if _csv_file(d) is None}
    return sorted(
        {d.name for base in folders.values() for d in _folders(base) if not _images(d)}
        - {d.name for base in folders.values() for d in _folders(base) if _images(d)}
    )


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)
