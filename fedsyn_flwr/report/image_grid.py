"""Synthetic images beside the real ones that are most like them, class by class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsyn_flwr.report.canvas import canvas, save
from fedsyn_flwr.report.curves import Run, labels, title
from fedsyn_flwr.report.samples import Pixels, Source, drawn_classes, read_pool

PAIRS = 5
CELL = 64  # pixels that a cell has at least; smaller images are enlarged without smoothing
GAP, WIDE_GAP = 3, 20  # between the two of a pair, between pairs


def draw_images(run: Run, stem: Path) -> list[Path]:
    """Write a grid of a run's pool; returns the files' paths.

    A row per class, at most ten, with up to five pairs: a synthetic image and the nearest real
    training image of its class. Which real image it was made from no client ever tells.
    """
    pool, source = read_pool(run.folder), Source(run)
    classes, names = drawn_classes(pool), source.training.class_names
    rows = []
    for c in classes:
        synthetic = pool.of_class(c, PAIRS)
        rows.append(list(zip(synthetic, source.nearest(synthetic, c), strict=True)))
    image, xs, ys = mosaic(rows)
    height, width = image.shape[:2]
    inches = 7.5
    figure = canvas(inches, inches * height / width + 0.6)
    axes = figure.add_subplot()
    axes.imshow(image, vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(ys, [names[c] for c in classes])
    axes.set_xticks(xs, ["shared | real"] * len(xs), fontsize="small")
    axes.set_ylabel("class")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    shown = f" ({len(classes)} of {len(names)} classes)" if len(classes) < len(names) else ""
    axes.set_title(
        f"{labels([[run]])[0]}: {title([[run]])}{shown}\n"
        "left: from the pool that clients share at the end; right: the nearest real training image "
        "of its class",
        fontsize="medium",
        pad=14,
    )
    return save(figure, stem)


def mosaic(rows: Sequence[Sequence[tuple[Pixels, Pixels]]]) -> tuple[Pixels, list[int], list[int]]:
    """All pairs in one picture.

    Parameters
    ----------
    rows : sequence
        Rows of pairs of images (C, H, W) in [0, 1], C = 1 or 3; a row may be shorter than others.

    Returns
    -------
    tuple
        RGB (h, w, 3), white where there is no image; the pairs' centres along x, the rows' along
        y.
    """
    _, h, w = rows[0][0][0].shape
    zoom = max(1, -(-CELL // max(h, w)))
    h, w = h * zoom, w * zoom
    count = max(map(len, rows))
    step_x, step_y = 2 * w + GAP + WIDE_GAP, h + GAP
    picture = np.ones((len(rows) * step_y - GAP, count * step_x - WIDE_GAP, 3), np.float32)
    for i, row in enumerate(rows):
        for j, pair in enumerate(row):
            for k, image in enumerate(pair):
                x, y = j * step_x + k * (w + GAP), i * step_y
                enlarged = image.repeat(zoom, axis=1).repeat(zoom, axis=2)
                picture[y : y + h, x : x + w] = enlarged.transpose(1, 2, 0)
    xs = [j * step_x + w + GAP // 2 for j in range(count)]
    return picture, xs, [i * step_y + h // 2 for i in range(len(rows))]
