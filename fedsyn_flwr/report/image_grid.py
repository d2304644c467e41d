"""Synthetic images class by class: beside the real ones most like them, or method by method."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report import measures
from fedsyn_flwr.report.canvas import canvas, save
from fedsyn_flwr.report.curves import Run, labels, title
from fedsyn_flwr.report.privacy_bars import PSNR
from fedsyn_flwr.report.samples import Pixels, Samples, Source, drawn_classes, read_pool

PAIRS = 5
SIDE = 4  # images of a class and run, where pools stand side by side
CELL = 64  # pixels that a cell has at least; smaller images are enlarged without smoothing
GAP, WIDE_GAP = 3, 20  # between images of a group, between groups


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


def draw_pools(groups: Sequence[Sequence[Run]], stem: Path) -> list[Path]:
    """Write the pools of several runs side by side; returns the files' paths.

    A row per class, at most ten, with up to four images of each group's first run; below them
    how much they are like real images, where that was measured.

    Raises
    ------
    UserError
        If the images are not of one shape.
    """
    runs = [group[0] for group in groups]
    pools = [read_pool(run.folder) for run in runs]
    shapes = {pool.images.shape[1:] for pool in pools}
    if len(shapes) > 1:
        raise UserError(f"images of {len(shapes)} shapes: give runs of one dataset")
    classes = drawn_classes(Samples(pools[0].images, np.concatenate([p.labels for p in pools])))
    rows = [[_filled(pool.of_class(c, SIDE)) for pool in pools] for c in classes]
    image, xs, ys = mosaic(rows)
    height, width = image.shape[:2]
    inches = 1.0 + 2.4 * len(runs)
    figure = canvas(inches, inches * height / width + 0.9)
    axes = figure.add_subplot()
    axes.imshow(image, vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(ys, [Source(runs[0]).training.class_names[c] for c in classes])
    found = [measures.measured(run.rows).get(PSNR) for run in runs]
    notes = ["PSNR not measured" if x is None else f"PSNR {x:.1f} dB" for x in found]
    axes.set_xticks(xs, notes)
    for x, name in zip(xs, labels(groups), strict=True):
        axes.text(x, -0.02 * height, name, ha="center", va="bottom")
    axes.set_ylabel("class")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"what clients share: {title(groups)}", fontsize="medium", pad=24)
    return save(figure, stem)


def _filled(images: Pixels) -> list[Pixels]:
    """As many images as a row shows, white ones where there are fewer."""
    return [*images, *np.ones((SIDE - len(images), *images.shape[1:]), images.dtype)]


def mosaic(
    rows: Sequence[Sequence[Sequence[Pixels]]],
) -> tuple[Pixels, list[int], list[int]]:
    """All images in one picture, in groups that stand apart.

    Parameters
    ----------
    rows : sequence
        Rows of groups of as many images (C, H, W) in [0, 1] each, C = 1 or 3; a row may have fewer
        groups than others.

    Returns
    -------
    tuple
        RGB (h, w, 3), white where there is no image; the groups' centres along x, the rows' along
        y.
    """
    _, h, w = rows[0][0][0].shape
    zoom = max(1, -(-CELL // max(h, w)))
    h, w = h * zoom, w * zoom
    count, size = max(map(len, rows)), len(rows[0][0])
    wide = size * (w + GAP) - GAP
    step_x, step_y = wide + WIDE_GAP, h + GAP
    picture = np.ones((len(rows) * step_y - GAP, count * step_x - WIDE_GAP, 3), np.float32)
    for i, row in enumerate(rows):
        for j, group in enumerate(row):
            for k, image in enumerate(group):
                x, y = j * step_x + k * (w + GAP), i * step_y
                enlarged = image.repeat(zoom, axis=1).repeat(zoom, axis=2)
                picture[y : y + h, x : x + w] = enlarged.transpose(1, 2, 0)
    xs = [j * step_x + wide // 2 for j in range(count)]
    return picture, xs, [i * step_y + h // 2 for i in range(len(rows))]
