"""What the commands have in common that read finished runs: their options, and where these lie."""

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
RunFolder = Annotated[str, typer.Argument(metavar="RUN", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "--out", help="Folder of the files. [default: the first RESULTS]"),
]
ALL_AXES = "rounds,seconds,bytes"
Axes = Annotated[
    str, typer.Option("--x", metavar="A,B,…", help="Curves: against rounds, seconds, bytes.")
]


def find_runs(results: Sequence[str]) -> "list[list[Run]]":
    """Groups of runs; what is missing from them is said."""
    from fedsyn_flwr.report import curves

    found = curves.find(results)
    for left in found.left_out:
        print(f"left out: {left} (not completed, or never evaluated)", file=sys.stderr)
    for run in (run for group in found.groups for run in group if not run.completed):
        print(f"not completed, taken as far as it got: {run.folder}", file=sys.stderr)
    return found.groups


def output_folder(output: Path | None, results: Sequence[str]) -> Path:
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


def axes(text: str) -> "list[X]":
    chosen = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in chosen:
        if name not in ALL_AXES.split(","):
            raise UserError(f"--x {name!r}: allowed are {ALL_AXES.replace(',', ', ')}")
    return chosen  # type: ignore[return-value]
