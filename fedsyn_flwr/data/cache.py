"""The decode cache: each data set is decoded once per machine, then memory-mapped by everyone."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.errors import UserError

DECODES = {"count": 0}
"""How many data sets this process has decoded; a load from the cache leaves it alone."""

_FORMAT = 1
"""Part of every key: raise it when what is written changes, and old entries are left behind."""


@dataclass(frozen=True)
class ImageSet:
    """One split, decoded.

    Attributes
    ----------
    images : uint8 (N, C, H, W)
        Memory-mapped, read-only, 0..255.
    labels : int64 (N,)
        In [0, num_classes).
    groups : dict of int64 (N,)
        The other integer and string columns, each as codes 0..G-1 in sorted order of its values.
        Codes of the train and of the test split do not correspond.
    class_names : list of str
        One per class, num_classes of them.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    groups: dict[str, NDArray[np.int64]]
    class_names: list[str]


@dataclass(frozen=True)
class Rows:
    """A split about to be decoded: everything but the pixels, which stream past once.

    `images` yields one uint8 (C, H, W) array per label, in order; `where` names the source in
    messages.
    """

    images: Iterator[NDArray[np.uint8]]
    labels: NDArray[np.int64]
    class_names: list[str]
    where: str
    groups: dict[str, NDArray[np.int64]] = field(default_factory=dict)


def default_cache_dir() -> Path:
    """Return `FEDSYN_CACHE_DIR` if set, else `~/.cache/fedsyn-flwr/data`."""
    configured = os.environ.get("FEDSYN_CACHE_DIR")
    return Path(configured or "~/.cache/fedsyn-flwr/data").expanduser()


def cached(prefix: str, identity: Any, read: Callable[[], Rows], root: Path | None) -> ImageSet:
    """Return the decoded split, decoding it only if no process has done so before.

    Parameters
    ----------
    prefix : str
        Readable start of the entry's folder name.
    identity : JSON-serialisable
        What the decoded bytes depend on; hashed into the key.
    read : callable
        Opens the source; called under the lock, at most once.
    root : Path or None
        Cache folder; None means :func:`default_cache_dir`.

    Raises
    ------
    UserError
        When the cache folder cannot be written, or the source is wrong.
    """
    from filelock import FileLock

    root = root or default_cache_dir()
    text = json.dumps([_FORMAT, identity], sort_keys=True)
    entry = root / f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    found = _open(entry)
    if found is not None:
        return found
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            return _open(entry) or _decode(entry, read())
    except OSError as error:
        raise UserError(
            f"cannot write the data cache in {root} ({error.strerror or error}); "
            "set FEDSYN_CACHE_DIR to a writable folder with enough space"
        ) from error


def _open(entry: Path) -> ImageSet | None:
    """Map an entry; None when it is missing or was cut short (a crash before the disk synced)."""
    try:
        images = np.load(entry / "images.npy", mmap_mode="r")
        with np.load(entry / "rows.npz") as rows:
            groups = {k[6:]: rows[k] for k in rows.files if k.startswith("group:")}
            return ImageSet(images, rows["labels"], groups, rows["class_names"].tolist())
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _decode(entry: Path, rows: Rows) -> ImageSet:
    """Write an entry beside its final name and rename it; the caller holds the entry's lock."""
    partial = entry.with_name(entry.name + ".partial")
    # Under the lock both can only be remains of a process that was killed.
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(entry, ignore_errors=True)
    partial.mkdir()
    try:
        DECODES["count"] += 1
        _write_images(partial / "images.npy", rows)
        arrays: dict[str, Any] = {f"group:{name}": codes for name, codes in rows.groups.items()}
        names = np.array(rows.class_names, dtype=np.str_)
        np.savez(partial / "rows.npz", labels=rows.labels, class_names=names, **arrays)
        os.rename(partial, entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    opened = _open(entry)
    if opened is None:
        raise OSError(f"{entry} cannot be read back")
    return opened


def _write_images(path: Path, rows: Rows) -> None:
    """Stream the pixels to disk, so that memory stays at one image whatever N."""
    if len(rows.labels) == 0:
        raise UserError(f"{rows.where} has no rows; give a folder with at least one image")
    first = next(rows.images)
    shape = (len(rows.labels), *first.shape)
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    mapped[0] = first
    for i, image in enumerate(rows.images, start=1):
        if image.shape != first.shape:
            raise UserError(
                f"{rows.where} mixes image sizes: row 0 is {_size(first)}, row {i} is "
                f"{_size(image)}; resize all images to one size, or read them as dataset = folder "
                "with image-size"
            )
        mapped[i] = image
    mapped.flush()


def _size(image: NDArray[np.uint8]) -> str:
    return f"{image.shape[1]}x{image.shape[2]}"
