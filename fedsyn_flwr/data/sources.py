"""Data sets by name: embedded, from the Hugging Face Hub, or from a local folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from fedsyn_flwr import plugins
from fedsyn_flwr.data import folders, hub
from fedsyn_flwr.data.cache import DECODES, ImageSet, cached, default_cache_dir
from fedsyn_flwr.data.specs import DATASETS, DatasetSpec
from fedsyn_flwr.errors import UserError

GROUP = "fedsyn.datasets"

__all__ = [
    "DATASETS",
    "DECODES",
    "DatasetSpec",
    "ImageSet",
    "default_cache_dir",
    "get_spec",
    "load",
]

Split = Literal["train", "test"]


def get_spec(name: str) -> DatasetSpec:
    """Return the facts of a data set.

    Raises
    ------
    UserError
        When there is none of that name; the message lists those there are.
    """
    if name in DATASETS:
        return DATASETS[name]
    found: DatasetSpec | None = plugins.load(GROUP, name, DatasetSpec)
    if found is None:
        known = [*DATASETS, *plugins.installed(GROUP)]
        raise UserError(
            f"dataset = {name!r} is unknown; choose one of {', '.join(known)}, or your own: folder "
            f"with data-dir, or hf:owner/name{plugins.nearest(name, known)}"
        )
    return found


def load(
    name: str,
    split: Split,
    *,
    data_dir: str = "",
    limit: int = 0,
    cache_dir: Path | None = None,
) -> ImageSet:
    """Load one split, decoding it only the first time on this machine.

    Parameters
    ----------
    name : str
        A key of :data:`DATASETS`.
    split : {"train", "test"}
        Which part.
    data_dir : str
        Empty for the embedded data or the Hub; else a folder in Hugging Face layout
        (`train-*.parquet`, in the folder itself, in `data/` or in the Hub's configuration folder)
        or in ImageFolder layout (`train/<class>/*.png`). Local and embedded data never touch the
        network.
    limit : int
        Keep the first so many rows, in row order; 0 keeps all.
    cache_dir : Path or None
        None means `FEDSYN_CACHE_DIR`, else `~/.cache/fedsyn-flwr/data`.

    Returns
    -------
    ImageSet
        Images uint8 (N, C, H, W) with the data set's own number of channels C. H and W are the
        images' own, which in a local folder may differ from the data set's native size.

    Raises
    ------
    UserError
        Unknown name, negative limit, a missing or unreadable folder or split, mixed image sizes,
        labels outside [0, num_classes), or a Hub that cannot be reached.
    """
    spec = get_spec(name)
    if split not in ("train", "test"):
        raise UserError(f"split {split!r} is unknown; choose train or test")
    if limit < 0:
        raise UserError(f"limit {limit} is negative; give 0 for all rows or a positive number")
    source = _find(spec, split, data_dir)
    identity: list[Any] = [asdict(spec), split, limit, source.identity()]
    return cached(f"{name}-{split}", identity, lambda: source.read(limit), cache_dir)


def _find(spec: DatasetSpec, split: str, data_dir: str) -> "folders.Source | hub.Source":
    if data_dir:
        return folders.find(spec, split, Path(data_dir).expanduser())
    if spec.hub is None:
        return hub.Digits(spec, split)
    return hub.Hub(spec, split)
