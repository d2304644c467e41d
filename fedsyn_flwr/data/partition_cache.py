"""Partitions drawn once per machine: flwr-datasets alone takes seconds to import.

A run splits the data in the command, in the server and in every actor. Whoever is first keeps
the index arrays beside the decoded images, and the others read them.
"""

import hashlib
import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike

from fedsyn_flwr.data.cache import default_cache_dir
from fedsyn_flwr.data.partition import Indices, make_partitions

_FORMAT = 1
"""Part of every key: raise it when `make_partitions` draws differently."""

PACKAGES = ("flwr-datasets", "numpy")
"""Whose generators and algorithms the draw depends on."""


def cached_partitions(
    labels: ArrayLike,
    num_clients: int,
    scheme: str,
    *,
    groups: ArrayLike | None = None,
    root: Path | None = None,
    **options: Any,
) -> list[Indices]:
    """`make_partitions` with a memory; ``root`` None means ``default_cache_dir()/partitions``.

    Raises
    ------
    UserError
        As `make_partitions`. A folder that cannot be written is no error.
    """
    key = _key(labels, num_clients, scheme, groups, options)
    path = (root or default_cache_dir() / "partitions") / f"{scheme}-{key}.npz"
    found = _read(path)
    if found is None:
        found = make_partitions(labels, num_clients, scheme, groups=groups, **options)
        _write(path, found)
    return found


def _key(labels: ArrayLike, num_clients: int, scheme: str, groups: Any, options: Any) -> str:
    """Hash of all that the draw depends on."""
    versions = [version(name) for name in PACKAGES]
    text = json.dumps([_FORMAT, versions, num_clients, scheme, options], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for array in (labels, groups):
        held = np.asarray([] if array is None else array)
        digest.update(f"{held.dtype}{held.shape}".encode() + held.tobytes())
    return digest.hexdigest()[:20]


def _read(path: Path) -> list[Indices] | None:
    """The partitions of a file, None if it is missing or cut short."""
    try:
        with np.load(path) as file:
            return np.split(file["rows"], file["ends"][:-1])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _write(path: Path, parts: list[Indices]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, rows=np.concatenate(parts), ends=np.cumsum([len(p) for p in parts]))
        os.replace(name, path)
    except OSError:  # full, or not ours: the partitions are drawn anew each time
        return
