"""A run's synthetic images as files."""

from pathlib import Path

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.samples import read_pool
from fedsyn_flwr.results.finished import Finished


def write_pool(run: Finished, folder: Path) -> int:
    """Write the pool as ``<folder>/train/<class>/00000.png``; how many images there are.

    Raises
    ------
    UserError
        If the run has no pool, or the folder already holds something.
    """
    from PIL import Image

    pool = read_pool(run.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and not empty: give a new folder")
    names = [name.replace("/", "-") for name in run.class_names]
    pixels = (pool.images * 255).round().astype("uint8").transpose(0, 2, 3, 1)
    for i, (image, label) in enumerate(zip(pixels, pool.labels, strict=True)):
        place = folder / "train" / names[label]
        place.mkdir(parents=True, exist_ok=True)
        grey = image.shape[-1] == 1
        Image.fromarray(image[..., 0] if grey else image).save(place / f"{i:05}.png")
    return len(pixels)
