"""``fedsyn compare``: many runs at once."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn_flwr.cli.options import (
    INTERRUPTED,
    Actors,
    Clients,
    CpusPerClient,
    GpusPerClient,
    ResultsDir,
)
from fedsyn_flwr.cli.results import origin
from fedsyn_flwr.errors import UserError

if TYPE_CHECKING:
    from fedsyn_flwr.report.estimate import Line
    from fedsyn_flwr.report.table import Summary
    from fedsyn_flwr.simulation.grid import Cell


def compare(
    confs: Annotated[list[str], typer.Argument(metavar="CONF...", show_default=False)],
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Methods, or `all`. [default: each conf's own]"),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N,N,…", help="Seeds.")] = "0",
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=A,B,…", help="Values of a key to try; repeatable."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--config",
            metavar="KEY=VALUE",
            help="Override one key; METHOD:KEY=VALUE in one method's runs only; repeatable.",
        ),
    ] = None,
    target: Annotated[
        float, typer.Option(help="Test accuracy whose first round is looked for.")
    ] = 0.9,
    clients: Clients = None,
    cpus_per_client: CpusPerClient = 1,
    gpus_per_client: GpusPerClient = 0.0,
    actors: Actors = None,
    results_dir: ResultsDir = None,
) -> None:
    """Run methods, seeds and values of keys one after another and tabulate them.

    Every conf is run with every method, every value of each --set and every seed. Means and
    deviations over the seeds go to summary.md, summary.csv and summary.json in the results
    folder. The same command again goes on where it was stopped: finished runs are kept, broken
    ones resumed.

    Exits 0 only when every run is completed; 1 when one failed (the others are run all the
    same), 2 when something in the call or a configuration is wrong (nothing is started then),
    130 on Ctrl-C.
    """
    from fedsyn_flwr.simulation import grid as grid
    from fedsyn_flwr.simulation import grid_arguments

    if not 0 < target <= 1:
        raise UserError(f"--target {target:g}: must be above 0 and at most 1")
    wanted = grid.Wanted(
        confs=confs,
        methods=grid_arguments.names(methods),
        seeds=grid_arguments.seeds(seeds),
        sets=grid_arguments.value_lists(values or []),
        overrides=config or [],
        results_dir=results_dir,
        size={
            "clients": clients,
            "cpus_per_client": cpus_per_client,
            "gpus_per_client": gpus_per_client,
            "actors": actors,
        },
    )
    cells = grid.prepare(wanted)
    for line in wanted.lacking():
        print(line)
    raise typer.Exit(_run(cells, target))


def _run(cells: "Sequence[Cell]", target: float) -> int:
    """Run a grid before the user's eyes; the exit code."""
    from fedsyn_flwr.report.gridview import for_terminal
    from fedsyn_flwr.simulation import grid as grid

    lines, folder, interrupted = [cell.line() for cell in cells], cells[0].plan.folder.parent, False
    print(f"{len(cells)} runs, results in {folder}", flush=True)
    try:
        with for_terminal(lines) as view:
            grid.run(cells, lines, view, lambda: _write(_summary(cells, lines, target), folder))
    except KeyboardInterrupt:
        interrupted = True
    summary = _summary(cells, lines, target)
    _write(summary, folder)
    _show(summary, folder)
    if interrupted:
        print("stopped by the user: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    return 0 if all(record.completed for record in summary.records) else 1


def _summary(cells: "Sequence[Cell]", lines: "Sequence[Line]", target: float) -> "Summary":
    from fedsyn_flwr.report.machine import hardware
    from fedsyn_flwr.report.table import Summary
    from fedsyn_flwr.simulation.grid import records

    made = origin((cell.plan.folder for cell in cells), hardware())
    return Summary(records(cells, lines), target, made)


def _write(summary: "Summary", folder: Path) -> None:
    """The three files, each whole at every moment."""
    from fedsyn_flwr.files import write_whole
    from fedsyn_flwr.report import table

    write_whole(folder / "summary.csv", table.csv_text(summary))
    write_whole(folder / "summary.json", table.json_text(summary))
    write_whole(folder / "summary.md", table.markdown(summary))


def _show(summary: "Summary", folder: Path) -> None:
    from rich.console import Console

    from fedsyn_flwr.report import table

    console = Console() if sys.stdout.isatty() else Console(width=250)
    for part in table.terminal_tables(summary, console.width):
        console.print(part, highlight=False)
    console.print("\n".join(table.notes(summary)), highlight=False, markup=False, soft_wrap=True)
    for name in ("summary.md", "summary.csv", "summary.json"):
        print(folder / name)
