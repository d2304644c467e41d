"""Options that several commands of ``fedsyn`` have."""

from typing import Annotated

import typer

DEFAULT_CONF = "digits-hfmds"
INTERRUPTED = 130  # 128 + SIGINT, as shells say it

# click 8.4 loses the help of arguments: the commands' own texts explain CONF
Conf = Annotated[str, typer.Argument(show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", metavar="KEY=VALUE", help="Override one key; repeatable."),
]
Clients = Annotated[
    int | None,
    typer.Option(help="Virtual clients. [default: the conf's num-clients, else 10]"),
]
CpusPerClient = Annotated[
    int,
    typer.Option(show_default=False, help="CPU cores reserved for each actor. [default: 1]"),
]
GpusPerClient = Annotated[
    float,
    typer.Option(
        show_default=False,
        help="Share of a GPU reserved for each actor. [default: 0, all share what there is]",
    ),
]
Actors = Annotated[
    int | None,
    typer.Option(
        help="Processes that take turns at playing the clients. [default: as many as fit the cores]"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Every random number of the run derives from it.")]
Name = Annotated[
    str | None,
    typer.Option(
        help="Name of the run and its results folder. [default: method, dataset, seed, time]"
    ),
]
ResultsDir = Annotated[
    str | None,
    typer.Option(
        help="Folder that gets one folder per run. "
        "[default: the conf's, else $FEDSYN_RESULTS_DIR, else ./results]"
    ),
]
