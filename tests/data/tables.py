"""Small tables in the schema of the Hub's data sets, for the loader tests."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMAS = {
    "svhn": ("image", "label", 10, 3),
    "mnist-m": ("image", "label", 10, 3),
    "cifar100": ("img", "fine_label", 100, 3),
    "femnist": ("image", "character", 62, 1),
}


def pixels(n: int, channels: int, size: int = 8, seed: int = 0) -> NDArray[np.uint8]:
    """Random uint8 images (n, channels, size, size)."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, channels, size, size), dtype=np.uint8)


def as_pil(image: NDArray[np.uint8]) -> Any:
    """One (C, H, W) image as a PIL image."""
    from PIL import Image

    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def dataset(name: str, images: NDArray[np.uint8], labels: list[int]) -> Any:
    """A `datasets.Dataset` with the columns that `name` has on the Hub."""
    import datasets as hf

    image, label, classes, _ = SCHEMAS[name]
    n = len(images)
    columns = {image: [as_pil(i) for i in images], label: labels}
    features: dict[str, Any] = {
        image: hf.Image(),
        label: hf.ClassLabel(names=[f"c{i}" for i in range(classes)]),
    }
    if name == "femnist":
        columns |= {"writer_id": [f"f{i % 5:04}_14" for i in range(n)], "hsf_id": [0] * n}
        features |= {"writer_id": hf.Value("string"), "hsf_id": hf.Value("int64")}
    if name == "cifar100":
        columns["coarse_label"] = [i % 20 for i in labels]
        features["coarse_label"] = hf.ClassLabel(names=[f"s{i}" for i in range(20)])
    return hf.Dataset.from_dict(columns, features=hf.Features(features))


def write_parquet(path: Path, data: Any) -> Path:
    """Write a dataset as one parquet file, with the features in its schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data.to_parquet(str(path))
    return path


def folder(root: Path, name: str, *, n: int = 12, layout: str = "") -> tuple[Path, Any]:
    """Write both splits of `name` (femnist: train only); return the folder and the images."""
    channels = SCHEMAS[name][3]
    images = {s: pixels(n, channels, seed=k) for k, s in enumerate(("train", "test"))}
    labels = [i % 7 for i in range(n)]
    for split, rows in images.items():
        if split == "test" and name == "femnist":
            continue
        path = root / layout / f"{split}-00000-of-00001.parquet"
        write_parquet(path, dataset(name, rows, labels))
    return root, images


def image_folder(root: Path, classes: list[str], per_class: int = 3, channels: int = 3) -> Any:
    """Write train/ and test/ folders of PNGs; return {split: {image bytes: class}}."""
    images = pixels(len(classes) * per_class * 2, channels)
    kept: dict[str, dict[bytes, str]] = {"train": {}, "test": {}}
    for i, image in enumerate(images):
        split, name = ("train", "test")[i % 2], classes[i // 2 % len(classes)]
        path = root / split / name / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        as_pil(image).save(path)
        kept[split][bytes(image)] = name
    return kept
