"""The parts of the page that need images or a model. What cannot be made is said, not raised."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedsyn_flwr import build, preflight
from fedsyn_flwr.data import get_spec, normalise
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report import curves, feature_map
from fedsyn_flwr.report.curves import Run
from fedsyn_flwr.report.image_grid import mosaic
from fedsyn_flwr.report.page import charts
from fedsyn_flwr.report.page.charts import Chart
from fedsyn_flwr.report.page.content import Page
from fedsyn_flwr.report.samples import BATCH, Source, drawn_classes, pick, read_pool
from fedsyn_flwr.server.tracking import POOL

PAIRS, MOST_POOLS, MOST_CLASSES = 4, 6, 20
Groups = Sequence[Sequence[Run]]


@dataclass(frozen=True)
class Picture:
    """A PNG as a data URI."""

    src: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Table:
    """Headers, and lines of as many texts."""

    caption: str
    headers: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Part:
    """A section."""

    id: str
    heading: str
    text: str = ""
    charts: list[Chart] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    table: Table | None = None


def added(page: Page, paths: Sequence[str]) -> Page:
    """The page with these parts, and a note for each that could not be made."""
    groups = curves.grouped(curves.every(paths))
    parts, notes = [], []
    for name, make in PARTS.items():
        try:
            part = make(groups)
        except (UserError, OSError, ValueError, KeyError, RuntimeError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            notes.append(f"{name}: {lines[0]}")
            continue
        if part:
            parts.append(part)
    return replace(page, extras=[*page.extras, *parts], notes=[*page.notes, *notes])


def _that_left(groups: Groups, file: str) -> list[tuple[str, Run]]:
    """Of each group its label and the first run that left a file, where one did."""
    pairs = zip(curves.labels(groups), groups, strict=True)
    found = ((n, next((r for r in g if (r.folder / file).is_file()), None)) for n, g in pairs)
    return [(name, run) for name, run in found if run]


def label_distribution(groups: Groups) -> Part | None:
    """Of the first run; None where its configuration does not say how many clients there were."""
    config = Source(groups[0][0]).config
    if not config.federation.num_clients or config.data.partition == "own":
        return None
    table, names = preflight.partition_table(config, config.federation.num_clients)
    kind = f"{config.data.dataset}, {config.data.partition} partition, first run's seed"
    return Part("labels", "Labels", charts=[charts.labels_held(table, names, kind)])


def images(groups: Groups) -> Part | None:
    """Synthetic images beside the nearest real ones, a picture per group."""
    shown = [_pairs(name, run) for name, run in _that_left(groups, POOL)[:MOST_POOLS]]
    text = "In each pair, left: what clients share at the end; right: the nearest real training "
    text += "image of the same class, by pixels. Which image it was made from no client ever tells."
    return Part("images", "Synthetic images", text, pictures=shown) if shown else None


def _pairs(name: str, run: Run) -> Picture:
    pool, source = read_pool(run.folder), Source(run)
    classes, rows = drawn_classes(pool), []
    for c in classes:
        synthetic = pool.of_class(c, PAIRS)
        rows.append(list(zip(synthetic, source.nearest(synthetic, c), strict=True)))
    named = ", ".join(str(source.training.class_names[c]) for c in classes)
    alt = f"Pairs of a synthetic and a real image by {name}, a row for each of the classes {named}."
    caption = f"{name} ({run.folder.name}). Rows from top to bottom: {named}."
    return Picture(png(mosaic(rows)[0]), alt, caption)


def png(image: Any) -> str:
    """A data URI of (h, w, 3) in [0, 1]."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray((image * 255).round().astype(np.uint8)).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")


def per_class(groups: Groups) -> Part | None:
    """Test accuracy of each class under each group's first final model."""
    runs = _that_left(groups, "model.safetensors")
    if not runs:
        return None
    lines, names = [], [str(n) for n in Source(runs[0][1]).training.class_names][:MOST_CLASSES]
    for name, run in runs:
        right = class_accuracies(Source(run))[:MOST_CLASSES]
        lines.append([name, *("—" if np.isnan(r) else f"{r:.3f}" for r in right)])
    caption = (
        "Share of each class's test images that the final model of the group's first run gets "
    )
    caption += f"right; at most {MOST_CLASSES} classes."
    return Part("classes", "Per class", table=Table(caption, ["method", *names], lines))


@torch.no_grad()
def class_accuracies(source: Source) -> Any:
    """Test accuracy per class, float (C,), NaN where the test set has none of it."""
    test = build.images(source.config, "test")
    spec, x = get_spec(source.config.data.dataset), torch.from_numpy(np.array(test.images))
    parts = (normalise(part.float(), spec.mean, spec.std) for part in x.split(BATCH))
    said = torch.cat([source.model(part).argmax(1) for part in parts]).numpy()
    count = len(source.training.class_names)
    total = np.bincount(test.labels, minlength=count).astype(float)
    right = np.bincount(test.labels[said == test.labels], minlength=count)
    return np.divide(right, total, out=np.full(count, np.nan), where=total > 0)


def features(groups: Groups) -> Part | None:
    """t-SNE of real and synthetic images under the first such run's final model."""
    held = _that_left(groups, POOL)
    if not held:
        return None
    name, run = held[0]
    pool, source = read_pool(run.folder), Source(run)
    classes, training = drawn_classes(pool), source.training.labels
    real = pick(training, classes, feature_map.PER_CLASS)
    made = pick(pool.labels, classes, feature_map.PER_CLASS)
    both = [source.features(source.real(real)), source.features(pool.images[made])]
    places = feature_map.embed(both, "tsne", source.config.federation.seed)
    names = source.training.class_names
    clouds = [
        (origin, place, [names[c] for c in labels])
        for origin, place, labels in zip(
            ("real", "synthetic"), places, (training[real], pool.labels[made]), strict=True
        )
    ]
    alt = f"Scatter of {len(real)} real and {len(made)} synthetic images' features, by class."
    caption = f"t-SNE of features under the final model of {run.folder.name} ({name}). Dots are "
    caption += "real training images, triangles synthetic ones; colours are classes."
    return Part("features", "Features", charts=[charts.scatter("features", caption, alt, clouds)])


PARTS: dict[str, Callable[[Groups], Part | None]] = {
    "label distribution": label_distribution,
    "per-class accuracy": per_class,
    "synthetic images": images,
    "features": features,
}
