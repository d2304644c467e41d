"""Real and synthetic images in one feature space, drawn in two dimensions (the paper's Fig. 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.report.canvas import CLASS_COLOURS, MARKERS, canvas, save
from fedsyn_flwr.report.curves import Run, by_value, labels, title
from fedsyn_flwr.report.samples import Pixels, Samples, Source, drawn_classes, pick, read_pool

PER_CLASS = 60
Embedding = Literal["tsne", "pca"]
NAMES = {"tsne": "t-SNE", "pca": "principal components"}


@dataclass(frozen=True)
class Cloud:
    """Features of one origin: a name, float32 (n, d) and classes (n,)."""

    name: str
    features: Pixels
    labels: NDArray[np.int64]


def draw_features(groups: Sequence[Sequence[Run]], embedding: Embedding, stem: Path) -> list[Path]:
    """Write the picture; returns the files' paths.

    All features are those of the final model of the first group's first run: features of
    different models do not compare. Of each group the first run's images are drawn, at most 60 of
    a class and of ten classes.
    """
    runs = [group[0] for group in by_value(groups)]
    pools = [read_pool(run.folder) for run in runs]
    source = Source(groups[0][0])
    classes = drawn_classes(pools[0])
    names = source.training.class_names
    training = source.training.labels
    real = pick(training, classes, PER_CLASS)
    clouds = [Cloud("real", source.features(source.real(real)), training[real])]
    own = labels(by_value(groups)) if len(groups) > 1 else ["synthetic"]
    clouds += [_cloud(name, pool, classes, source) for name, pool in zip(own, pools, strict=True)]
    places = embed([cloud.features for cloud in clouds], embedding, source.config.federation.seed)
    figure = canvas(8.4, 5.8)
    axes = figure.add_subplot()
    for i, (cloud, place) in enumerate(zip(clouds, places, strict=True)):
        _scatter(axes, cloud, place, classes, i, len(clouds) - 1)
    _name_classes(axes, places[0], clouds[0].labels, [(c, names[c]) for c in classes])
    _legends(figure, clouds, [names[c] for c in classes])
    axes.set(
        xlabel=f"{NAMES[embedding]}, 1st dimension", ylabel=f"{NAMES[embedding]}, 2nd dimension"
    )
    axes.set(xticks=[], yticks=[])
    axes.set_title(
        f"Features under the final model of {source.folder.name}\n{title(groups)}",
        fontsize="medium",
    )
    return save(figure, stem)


def _cloud(name: str, pool: Samples, classes: Sequence[int], source: Source) -> Cloud:
    chosen = pick(pool.labels, classes, PER_CLASS)
    return Cloud(name, source.features(pool.images[chosen]), pool.labels[chosen])


def embed(clouds: Sequence[Pixels], embedding: Embedding, seed: int) -> list[NDArray[np.float64]]:
    """All clouds (n_i, d) together in two dimensions: a list of (n_i, 2)."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    joint = np.concatenate(clouds).astype(np.float64)
    if embedding == "pca":
        places = PCA(n_components=2, random_state=seed).fit_transform(joint)
    else:
        perplexity = min(30.0, (len(joint) - 1) / 3)
        places = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(joint)
    return np.split(places, np.cumsum([len(cloud) for cloud in clouds])[:-1])


def shade(colour: str, strength: float) -> tuple[float, float, float]:
    """A colour between a pale tint (0) and itself, slightly darkened (1)."""
    from matplotlib.colors import to_rgb

    white, full = np.ones(3), 0.85 * np.array(to_rgb(colour))
    r, g, b = (1 - strength) * (0.7 * white + 0.3 * full) + strength * full
    return float(r), float(g), float(b)


def _strength(i: int, count: int) -> float:
    """The i-th of ``count`` groups, from pale to full."""
    return 1.0 if count == 1 else 0.25 + 0.75 * (i - 1) / (count - 1)


def _scatter(
    axes: Any,
    cloud: Cloud,
    place: NDArray[np.float64],
    classes: Sequence[int],
    i: int,
    count: int,
) -> None:
    """Real images are small pale dots, the i-th group's a marker of its own, later ones darker."""
    for j, c in enumerate(classes):
        points, colour = place[cloud.labels == c], CLASS_COLOURS[j]
        if i == 0:
            axes.scatter(*points.T, s=9, color=shade(colour, 0.35), marker="o", linewidth=0)
        else:
            look = {"color": shade(colour, _strength(i, count)), "marker": MARKERS[i - 1]}
            axes.scatter(*points.T, s=20, edgecolor="black", linewidth=0.4, **look)


def _name_classes(
    axes: Any,
    place: NDArray[np.float64],
    held: NDArray[np.int64],
    classes: Sequence[tuple[int, str]],
) -> None:
    """Each class's name at the middle of its real images, so that no one needs the colours."""
    box = {"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 1.5}
    for c, name in classes:
        if (held == c).any():
            x, y = np.median(place[held == c], axis=0)
            axes.text(x, y, name, ha="center", va="center", weight="bold", size="small", bbox=box)


def _legends(figure: Any, clouds: Sequence[Cloud], names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    def handle(label: str, colour: Any, marker: str, size: float) -> Line2D:
        edge = "none" if marker == "o" else "black"
        return Line2D(
            [],
            [],
            linestyle="",
            label=label,
            color=colour,
            marker=marker,
            markersize=size,
            markeredgecolor=edge,
            markeredgewidth=0.4,
        )

    count = len(clouds) - 1
    origins = [handle("real", shade("#000000", 0.35), "o", 4)]
    origins += [
        handle(cloud.name, shade("#000000", _strength(i, count)), MARKERS[i - 1], 6)
        for i, cloud in enumerate(clouds[1:], 1)
    ]
    look: dict[str, Any] = {"alignment": "left", "fontsize": "small"}
    figure.legend(handles=origins, title="images", loc="outside right upper", **look)
    colours = [handle(name, CLASS_COLOURS[j], "o", 6) for j, name in enumerate(names)]
    figure.legend(handles=colours, title="class", loc="outside right lower", **look)
