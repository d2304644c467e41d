"""A SuperNode's own images: a folder that no one else has, with some of the run's classes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn_flwr.data.cache import ImageSet, Rows, cached
from fedsyn_flwr.data.folders import ImageFolder, ParquetFolder, class_folders, image_files
from fedsyn_flwr.data.specs import DatasetSpec
from fedsyn_flwr.errors import UserError

SCHEME = "own"
"""The value of ``partition`` with which every SuperNode trains on its own folder."""


def load_own(
    spec: DatasetSpec,
    path: Path,
    labels: Sequence[str],
    *,
    limit: int = 0,
    cache_dir: Path | None = None,
) -> ImageSet:
    """Load a node's images, decoding them only the first time on this machine.

    Parameters
    ----------
    spec : DatasetSpec
        Facts of the run's dataset: channels and number of classes.
    path : Path
        A folder with ``<class>/*.png`` or with ``*.parquet``; either may also lie in its
        subfolder ``train``.
    labels : sequence of str
        The run's class names; a class's index is its place here, whichever classes a node has.
    limit : int
        Keep the first so many rows; 0 keeps all.
    cache_dir : Path or None
        None means the default.

    Raises
    ------
    UserError
        A missing or empty folder, a class that the run does not have, images with other channels
        than the run's or of several sizes.
    """
    source = _find(spec, path, list(labels))
    identity = [asdict(spec), list(labels), limit, source.identity()]
    return cached("own", identity, lambda: source.read(limit), cache_dir)


@dataclass(frozen=True)
class NamedParquet:
    """Parquet files whose class codes are brought to the run's by name, where they have names."""

    files: ParquetFolder
    labels: list[str]

    def identity(self) -> Any:
        """Return what the decoded rows depend on."""
        return self.files.identity()

    def read(self, limit: int) -> Rows:
        """Open the first `limit` rows (0 = all)."""
        rows = self.files.read(limit)
        codes = np.arange(len(rows.class_names))
        for code in np.unique(rows.labels):
            codes[code] = self._index(rows.class_names[code], int(code), rows.where)
        return replace(rows, labels=codes[rows.labels], class_names=self.labels)

    def _index(self, name: str, code: int, where: str) -> int:
        """A class's place in the run's list; one without a name keeps its number."""
        if name == str(code) and name not in self.labels:
            return code
        check_class(name, self.labels, where)
        return self.labels.index(name)


def _find(spec: DatasetSpec, path: Path, labels: list[str]) -> ImageFolder | NamedParquet:
    if not path.is_dir():
        raise UserError(f"data-path {path} is not a folder on this node")
    for folder in (path, path / "train"):
        tables = sorted(folder.glob("*.parquet"))
        if tables:
            return NamedParquet(ParquetFolder(spec, "train", tables, False, convert=False), labels)
    root = path / "train" if (path / "train").is_dir() else path
    files = image_files(root)
    if not files:
        raise UserError(f"data-path {path} holds neither <class>/*.png nor *.parquet")
    for folder in class_folders(root):
        check_class(folder.name, labels, str(path))
    return ImageFolder(spec, root, labels, files, convert=False)


def check_class(name: str, labels: Sequence[str], where: str) -> None:
    """Refuse a class that is not in the run's list."""
    if name not in labels:
        shown = ", ".join(labels[:12]) + (", …" if len(labels) > 12 else "")
        raise UserError(
            f"{where} has a class {name!r}, which is not among the run's {len(labels)}: {shown}; "
            "rename it, or set the run's key labels"
        )
