"""Local folders: Hugging Face layout (parquet) and ImageFolder layout (one folder per class)."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn_flwr.data.cache import Rows
from fedsyn_flwr.data.specs import DatasetSpec
from fedsyn_flwr.data.tables import (
    Table,
    check_labels,
    class_names,
    decode,
    hold_out,
    read_table,
)
from fedsyn_flwr.errors import UserError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}
_BATCH_ROWS = 1024


def find(spec: DatasetSpec, split: str, root: Path) -> "Source":
    """Recognise the layout of a folder.

    Raises
    ------
    UserError
        When the folder is missing, holds neither layout, or lacks the split.
    """
    if not root.is_dir():
        raise UserError(f"data-dir {root} is not a folder; give an existing folder")
    for folder in (root, root / "data", *([root / spec.config] if spec.config else [])):
        files = {s: _parquet_files(folder, s) for s in ("train", "test")}
        if any(files.values()):
            return _parquet(spec, split, root, files)
    if any(class_folders(root / s) for s in ("train", "test")):
        return _image_folder(spec, split, root)
    raise UserError(
        f"data-dir {root} has no recognised layout; expected train-*.parquet and test-*.parquet, "
        "or train/<class>/*.png and test/<class>/*.png"
    )


@dataclass(frozen=True)
class ParquetFolder:
    """The parquet files of one split; `held_out` when both splits share the train files.

    Without `convert`, grey images are not taken for colour ones nor the other way round.
    """

    spec: DatasetSpec
    split: str
    files: list[Path]
    held_out: bool
    convert: bool = True

    def identity(self) -> Any:
        """Return what the decoded rows depend on: paths, sizes and times of the files."""
        return ["parquet", self.held_out, stamps(self.files)]

    def read(self, limit: int) -> Rows:
        """Open the first `limit` rows (0 = all)."""
        table = open_parquet(self.files)
        rows = np.arange(table.num_rows)
        if self.held_out:
            rows = hold_out(table.num_rows, self.split)
        return read_table(table, self.spec, rows[: limit or None], self.convert)


@dataclass(frozen=True)
class ImageFolder:
    """One folder per class. Label = rank of the folder's name over both splits.

    Rows are the sorted files under a fixed shuffle: in sorted order the first N rows, which is
    what a limit keeps, would all be of one class.
    """

    spec: DatasetSpec
    root: Path
    classes: list[str]
    files: list[Path]
    convert: bool = True

    def identity(self) -> Any:
        """Return what the decoded rows depend on: classes, paths, sizes and times of the files."""
        return ["image-folder", self.classes, stamps(self.files)]

    def read(self, limit: int) -> Rows:
        """Open the first `limit` rows (0 = all)."""
        order = np.random.default_rng(0).permutation(len(self.files))[: limit or None]
        files = [self.files[i] for i in order]
        code = {name: i for i, name in enumerate(self.classes)}
        labels = np.array([code[file.parent.name] for file in files], dtype=np.int64)
        check_labels(labels, self.spec, str(self.root))
        channels, convert = self.spec.channels, self.convert
        images = (decode(str(file), channels, str(file), convert) for file in files)
        return Rows(images, labels, class_names(self.classes, self.spec), str(self.root))


Source = ParquetFolder | ImageFolder


def _parquet_files(folder: Path, split: str) -> list[Path]:
    return sorted([*folder.glob(f"{split}-*.parquet"), *folder.glob(f"{split}.parquet")])


def _parquet(spec: DatasetSpec, split: str, root: Path, files: dict[str, list[Path]]) -> Source:
    held_out = spec.test_split is None and not files["test"]
    chosen = files["train"] if held_out else files[split]
    if not chosen:
        raise UserError(f"data-dir {root} has no {split}-*.parquet; add the {split} split")
    return ParquetFolder(spec, split, chosen, held_out)


def _image_folder(spec: DatasetSpec, split: str, root: Path) -> Source:
    files = image_files(root / split)
    if not files:
        raise UserError(f"data-dir {root} has no images in {split}/<class>/; add the {split} split")
    names = {d.name for s in ("train", "test") for d in class_folders(root / s)}
    # Numbered folders sort as numbers, so that folder "10" is class 10 and not class 2.
    numbered = all(name.isdecimal() for name in names)
    return ImageFolder(spec, root, sorted(names, key=int if numbered else None), files)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder's class folders, sorted."""
    folders = class_folders(folder)
    return sorted(f for d in folders for f in d.iterdir() if f.suffix.lower() in _SUFFIXES)


def class_folders(folder: Path) -> list[Path]:
    """A folder's subfolders; none where it is missing."""
    return [d for d in folder.iterdir() if d.is_dir()] if folder.is_dir() else []


def stamps(files: list[Path]) -> list[list[Any]]:
    stats = [(file.resolve(), file.stat()) for file in files]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]


def open_parquet(paths: list[Path]) -> Table:
    import pyarrow as pa

    files = [_parquet_file(path) for path in paths]
    schema = files[0].schema_arrow

    def columns(names: list[str]) -> Any:
        try:
            return pa.concat_tables(file.read(names) for file in files)
        except pa.ArrowInvalid as error:
            raise UserError(
                f"the parquet files of {paths[0].parent} differ in the columns {', '.join(names)} "
                "or their types; write them alike"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(paths[0]) from error

    def batches(name: str) -> Iterator[Any]:
        for path, file in zip(paths, files, strict=True):
            try:
                for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
                    yield batch.column(0)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(path) from error

    num_rows = sum(file.metadata.num_rows for file in files)
    return Table(str(paths[0].parent), num_rows, _features(schema), columns, batches)


def _parquet_file(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path) from error


def _unreadable(path: Path) -> UserError:
    return UserError(f"{path} is not a readable parquet file; download or write it again")


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the Hugging Face features of a schema; guessed from the types where not declared."""
    declared = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = declared.get("info", {}).get("features") or {}
    return {f.name: _feature(features.get(f.name), str(f.type)) for f in schema}


def _feature(declared: Any, arrow_type: str) -> dict[str, Any]:
    if isinstance(declared, dict) and "_type" in declared:
        return declared
    # Polars writes large_binary, and some put the path first.
    if re.fullmatch(r"(large_)?binary|struct<.*\bbytes: (large_)?binary.*>", arrow_type):
        return {"_type": "Image"}
    return {"_type": "Value", "dtype": arrow_type}
