"""``fedsyn cost``, ``fedsyn plot`` and ``fedsyn figure``: what finished runs tell."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn_flwr.errors import UserError

if TYPE_CHECKING:
    from fedsyn_flwr.report.curves import Run, X
    from fedsyn_flwr.report.table import Origin

# click 8.4 loses the help of arguments: the commands' own texts explain RESULTS
Results = Annotated[list[str], typer.Argument(metavar="RESULTS...", show_default=False)]
Output = Annotated[
    Path | None,
    typer.Option("--output", "--out", help="Folder of the files. [default: the first RESULTS]"),
]
ALL_AXES = "rounds,seconds,bytes"
Axes = Annotated[
    str, typer.Option("--x", metavar="A,B,…", help="Curves: against rounds, seconds, bytes.")
]


def cost(results: Results, output: Output = None) -> None:
    """Tabulate what methods cost: operations, seconds, bytes, memory.

    RESULTS are folders of runs, or folders that hold some. Runs that differ in nothing but the
    seed are one row; operations and seconds are a client's in one round, split into training,
    synthesis and the privacy report, with the ratio to the first row. Saves cost.md, cost.csv and
    cost.json.
    """
    from rich.console import Console

    from fedsyn_flwr.report import costs
    from fedsyn_flwr.report.columns import terminal_parts
    from fedsyn_flwr.report.files import write_whole

    groups = _find(results)
    made = origin(run.folder for group in groups for run in group)
    rows, folder = costs.cost_rows(groups), _folder(output, results)
    files = {
        "cost.md": costs.markdown(rows, made),
        "cost.csv": costs.csv_text(groups),
        "cost.json": costs.json_text(rows, made),
    }
    console = Console() if sys.stdout.isatty() else Console(width=250)
    for part in terminal_parts(costs.cells(rows), range(1), console.width):
        console.print(part, highlight=False)
    console.print("\n".join(costs.NOTES), highlight=False, markup=False, soft_wrap=True)
    for name, text in files.items():
        write_whole(folder / name, text)
        print(folder / name)


def plot(results: Results, x: Axes = ALL_AXES, output: Output = None) -> None:
    """Draw accuracy against rounds, seconds and bytes, with a band over seeds.

    RESULTS are folders of runs, or folders that hold some. Runs that differ in nothing but the
    seed are one curve: their mean, and the range between the lowest and the highest. Saves
    accuracy-rounds.png, accuracy-rounds.svg and so on.
    """
    figure("curves", results, x=x, output=output)


def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    results: Results,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Sweep: the key. [default: the one that differs]"),
    ] = None,
    embedding: Annotated[str, typer.Option(help="Features: tsne or pca.")] = "tsne",
    x: Axes = ALL_AXES,
    output: Output = None,
) -> None:
    """Draw finished runs: images, pools, tsne, curves, sweep, privacy, drift, logits, divergence.

    images: synthetic images beside the nearest real ones, a picture per run. pools: what several
    methods share, side by side. tsne: features of real and synthetic images under the first run's
    final model. curves: as `fedsyn plot`. sweep: final accuracy against a key. privacy: accuracy,
    PSNR and time, a bar per method. drift: variance among the clients' updates against rounds.
    logits: how large the logits of the clients' models are on the server's images, of runs with a
    refinement. divergence: distance of the final model from one trained on all clients' data,
    layer by layer; it trains that one.

    RESULTS are folders of runs, or folders that hold some; runs that differ in nothing but the
    seed belong together. Saves PNG and SVG.
    """
    from fedsyn_flwr.report import pictures

    wishes = pictures.Wishes(key, pictures.embedding(embedding), _axes(x))
    draw = pictures.kind(kind)
    for path in draw(_find(results), _folder(output, results), wishes):
        print(path)


def _find(results: Sequence[str]) -> "list[list[Run]]":
    """Groups of runs; what is missing from them is said."""
    from fedsyn_flwr.report import curves

    found = curves.find(results)
    for left in found.left_out:
        print(f"left out: {left} (not completed, or never evaluated)", file=sys.stderr)
    for run in (run for group in found.groups for run in group if not run.completed):
        print(f"not completed, taken as far as it got: {run.folder}", file=sys.stderr)
    return found.groups


def _folder(output: Path | None, results: Sequence[str]) -> Path:
    return (output or Path(results[0])).expanduser().absolute()


def origin(folders: Iterable[Path], hardware: str = "") -> "Origin":
    """What this command makes of runs; they may come from another machine than this one."""
    from datetime import datetime

    from fedsyn_flwr.report.files import read_json
    from fedsyn_flwr.report.machine import joined_versions
    from fedsyn_flwr.report.table import Origin

    configs = (read_json(folder / "config.json") for folder in folders)
    return Origin(
        command=shlex.join(["fedsyn", *sys.argv[1:]]),
        date=datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        hardware=hardware,
        versions=joined_versions(config.get("versions", {}) for config in configs),
    )


def _axes(text: str) -> "list[X]":
    from typing import get_args

    from fedsyn_flwr.report.curves import X

    chosen = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in chosen:
        if name not in get_args(X):
            raise UserError(f"--x {name!r}: allowed are {', '.join(get_args(X))}")
    return chosen  # type: ignore[return-value]
