"""How far clients drift apart, in weights and in logits, against rounds (MrTF's Figs. 3 and 6)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.curves import Curve, Run, curves, title
from fedsyn_flwr.report.figure import Scale, draw, seeds

LOGITS = "refinement/logit_std"
DRIFT = {
    "update_variance": "variance of the clients' updates, Σ p‖Δ - mean Δ‖²",
    "relative_variance": "variance of the clients' updates / ‖mean Δ‖²",
}


def draw_drift(groups: Sequence[Sequence[Run]], folder: Path) -> list[Path]:
    """Write ``drift-update_variance`` and ``drift-relative_variance``; returns the files' paths.

    Raises
    ------
    UserError
        If no run measured it.
    """
    paths = []
    for name, text in DRIFT.items():
        held = measuring(groups, f"drift/{name}", "runs of older versions did not")
        made, scale = curves(held, "rounds", f"drift/{name}"), Scale(text, logarithmic=True)
        paths += draw(made, "rounds", title(held), folder / f"drift-{name}", scale)
    return paths


def draw_logits(groups: Sequence[Sequence[Run]], stem: Path) -> list[Path]:
    """Write the picture: the median client, and the range of all; returns the files' paths.

    Over seeds the line is the mean of the medians, and the band goes from the least to the
    largest of all.

    Raises
    ------
    UserError
        If no run measured it.
    """
    held = measuring(groups, f"{LOGITS}_median", "give runs with a refinement, such as mrtf")
    scale = Scale(
        "standard deviation of a client's logits", True, f"median and range of\n{whose(held)}"
    )
    return draw(spreads(held), "rounds", title(held), stem, scale)


def spreads(groups: Sequence[Sequence[Run]]) -> list[Curve]:
    """Per group the median client's logits between the smallest and the largest client's."""
    low, middle, high = (
        curves(groups, "rounds", f"{LOGITS}_{name}") for name in ("min", "median", "max")
    )
    return [
        replace(m, low=least.low, high=most.high)
        for least, m, most in zip(low, middle, high, strict=True)
    ]


def whose(groups: Sequence[Sequence[Run]]) -> str:
    """What a band is over."""
    most = max(map(len, groups))
    return "the round's clients" + (f", {seeds(most)}" if most > 1 else "")


def measuring(groups: Sequence[Sequence[Run]], key: str, why_not: str) -> list[list[Run]]:
    """The groups' runs that have a measure.

    Raises
    ------
    UserError
        If none has; ``why_not`` says what to do.
    """
    held = [[run for run in group if any(key in row for row in run.rows)] for group in groups]
    found = [group for group in held if group]
    if not found:
        raise UserError(f"no run measured {key}: {why_not}")
    return found
