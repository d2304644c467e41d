"""What lies in a user's folder: files, splits and classes, by name only."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsyn_flwr.errors import UserError

TRAIN = ("train", "training")
TEST = ("test", "testing", "validation", "valid", "val", "dev", "eval")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


def fingerprint(root: Path) -> Any:
    """What a folder's content depends on: its files' names, sizes and times, through links too.

    Raises
    ------
    UserError
        If it is no folder.
    """
    if not root.is_dir():
        raise UserError(f"data-dir {root} is not a folder; give an existing folder")
    found = [(str(f.relative_to(root)), _stat(f)) for f in sorted(_files(root))]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]


def _stat(file: Path) -> os.stat_result:
    """Of what a link leads to; of the link itself where that is nowhere."""
    return file.stat() if file.exists() else file.lstat()


def _files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files that are not hidden. Links to folders are followed, but not in circles."""
    real = folder.resolve()
    if real in above:
        return
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read ({error.strerror}); allow it, or move it"
        ) from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry, (*above, real))
        else:
            yield entry


def split_of(name: str) -> str:
    """The split that a file or folder is named after: the first word that is one; else nothing."""
    words = re.findall(r"[a-z]+", name.lower())
    return next((word for word in words if word in (*TRAIN, *TEST)), "")


def split_folders(root: Path) -> dict[str, Path]:
    """Split → folder; a folder without any of the usual names is one split, ``train``.

    A folder ``train`` that has images and no folders is a class (of trains).
    """
    known = {d.name.lower(): d for d in folders(root) if d.name.lower() in (*TRAIN, *TEST)}
    train = next((known[name] for name in TRAIN if name in known), None)
    if train is None or (not folders(train) and images(train) and not any(train.glob("*.csv"))):
        return {"train": root}
    return known


def parquet_splits(root: Path) -> dict[str, list[Path]]:
    """Split → parquet files: named after it, or in a folder of its name; else all one split.

    Raises
    ------
    UserError
        If some files are named after a split and others are not.
    """
    found: dict[str, list[Path]] = {}
    for file in sorted(f for f in _files(root) if f.suffix == ".parquet"):
        places = (file.stem, *reversed(file.relative_to(root).parts[:-1]))
        split = next((s for s in map(split_of, places) if s), "")
        found.setdefault(split, []).append(file)
    if "" in found and len(found) > 1:
        raise UserError(
            f"{found[''][0]} belongs to no split: name it after one (train, test, …), or remove it"
        )
    return {"train": found[""]} if "" in found else found


def folders(root: Path) -> list[Path]:
    """The subfolders that are not hidden, sorted."""
    return sorted(d for d in root.iterdir() if d.is_dir() and not d.name.startswith("."))


def images(folder: Path) -> list[Path]:
    """The images in a folder and its subfolders, sorted; links that lead nowhere among them."""
    return sorted(f for f in _files(folder) if f.suffix.lower() in SUFFIXES)


def alike(root: Path) -> list[str]:
    """Folders that all class folders have in common, where none has images of its own.

    Then these are probably the classes, and what was taken for classes are splits.
    """
    classes = folders(root)
    inner = [{d.name for d in folders(c)} for c in classes]
    direct = any(f.suffix.lower() in SUFFIXES for c in classes for f in c.iterdir())
    same = len(inner) > 1 and all(names == inner[0] for names in inner)
    return sorted(inner[0]) if same and not direct and len(inner[0]) > 1 else []
