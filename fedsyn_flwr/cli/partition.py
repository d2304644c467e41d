"""``fedsyn partition``: which client holds which labels."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsyn_flwr.cli.options import DEFAULT_CONF, Clients, Conf, Overrides, Seed


def partition(
    conf: Conf = DEFAULT_CONF,
    config: Overrides = None,
    clients: Clients = None,
    seed: Seed = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the heat map goes. [default: ./partition-CONF.png]")
    ] = None,
) -> None:
    """Show which client holds which labels.

    Prints a table of counts and saves a heat map as PNG; nothing is trained. CONF is as for
    `fedsyn run`.
    """
    from rich.console import Console

    from fedsyn_flwr.report.label_heatmap import save_heatmap
    from fedsyn_flwr.report.labels import label_table
    from fedsyn_flwr.simulation.resolve import find_conf, label_counts

    table, names, title = label_counts(conf, config or [], {"seed": seed}, clients)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(title, highlight=False)
    console.print(label_table(table, names))
    path = (output or Path(f"partition-{find_conf(conf).stem}.png")).absolute()
    save_heatmap(table, names, path, title)
    print(f"heat map in {path}")
