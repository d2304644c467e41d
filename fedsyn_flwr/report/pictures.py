"""The kinds of picture that ``fedsyn figure`` draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report import curves, diagnostics, privacy_bars, sweep
from fedsyn_flwr.report.curves import Run, X
from fedsyn_flwr.report.feature_map import Embedding
from fedsyn_flwr.report.figure import draw

Groups = Sequence[Sequence[Run]]


@dataclass(frozen=True)
class Wishes:
    """What a picture can be asked for beside its runs."""

    key: str | None
    embedding: Embedding
    axes: Sequence[X]


def images(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture per run."""
    from fedsyn_flwr.report import image_grid  # loads PyTorch

    runs = [run for group in groups for run in group]
    names = [run.folder.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.folder.parent.name}-{run.folder.name}" for run in runs]
    pairs = zip(runs, names, strict=True)
    return [
        p for run, name in pairs for p in image_grid.draw_images(run, folder / f"images-{name}")
    ]


def pools(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture of all runs."""
    from fedsyn_flwr.report.image_grid import draw_pools

    return draw_pools(groups, folder / "pools")


def tsne(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture of all runs."""
    from fedsyn_flwr.report.feature_map import draw_features

    return draw_features(groups, wishes.embedding, folder / f"features-{wishes.embedding}")


def accuracy(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture per axis, as `fedsyn plot`."""
    return [
        path
        for x in wishes.axes
        for path in draw(
            curves.curves(groups, x), x, curves.title(groups), folder / f"accuracy-{x}"
        )
    ]


def swept(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture."""
    key = sweep.swept_key(groups, wishes.key)
    return sweep.draw_sweep(groups, key, folder / f"sweep-{key}")


def privacy(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture."""
    return privacy_bars.draw_privacy(groups, folder / "privacy")


def drift(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """Two pictures."""
    return diagnostics.draw_drift(groups, folder)


def logits(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture."""
    return diagnostics.draw_logits(groups, folder / "logits")


def divergence(groups: Groups, folder: Path, wishes: Wishes) -> list[Path]:
    """One picture of all runs, after the central training that they are compared with."""
    from fedsyn_flwr.report.divergence import draw_divergence

    return draw_divergence(groups, folder / "divergence")


KINDS: dict[str, Callable[[Groups, Path, Wishes], list[Path]]] = {
    "images": images,
    "pools": pools,
    "tsne": tsne,
    "curves": accuracy,
    "sweep": swept,
    "privacy": privacy,
    "drift": drift,
    "logits": logits,
    "divergence": divergence,
}


def kind(name: str) -> Callable[[Groups, Path, Wishes], list[Path]]:
    """What draws that kind.

    Raises
    ------
    UserError
        Listing the kinds there are.
    """
    if name not in KINDS:
        raise UserError(f"figure {name!r}: allowed are {', '.join(KINDS)}")
    return KINDS[name]


def embedding(name: str) -> Embedding:
    """The embedding of that name.

    Raises
    ------
    UserError
        Listing those there are.
    """
    known: tuple[Embedding, ...] = get_args(Embedding)
    for each in known:
        if name == each:
            return each
    raise UserError(f"--embedding {name!r}: allowed are {', '.join(known)}")
