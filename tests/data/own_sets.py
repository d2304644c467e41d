"""Images of a user's own, written as users have them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedsyn_flwr import config


def picture(width: int, height: int, value: int, mode: str = "RGB") -> Image.Image:
    """Noise around a value, so that no two images are alike."""
    rng = np.random.default_rng(value * 1000 + width)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    noise = rng.integers(-8, 9, shape)
    return Image.fromarray((value + noise).clip(0, 255).astype(np.uint8), mode)


def save(image: Image.Image, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def tree(root: Path, classes: list[str], splits: dict[str, int], mode: str = "RGB") -> Path:
    """``split/class/i.jpg`` in mixed sizes; a class's images share a brightness."""
    for split, count in splits.items():
        for c, name in enumerate(classes):
            for i in range(count):
                image = picture(20 + 3 * i + c % 5, 24 + i, 6 * c + 10, mode)
                save(image, root / split / name / f"{i}.jpg")
    return root


def parquet(file: Path, labels: list[Any], mode: str = "RGB", size: int = 16, **more: Any) -> None:
    images = []
    for i in range(len(labels)):
        data = io.BytesIO()
        picture(size, size, 10 + i % 200, mode).save(data, "PNG")
        images.append({"bytes": data.getvalue(), "path": None})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": images, "label": labels, **more}), file)


def settings(folder: Path, **keys: Any) -> config.Config:
    return config.load(config.merged({"dataset": "folder", "data-dir": str(folder)}, keys))
