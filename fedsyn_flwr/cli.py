"""The ``fedsyn`` command."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn_flwr import cli_deploy, cli_grid, cli_report
from fedsyn_flwr.cli_options import (
    INTERRUPTED,
    Actors,
    Clients,
    Conf,
    CpusPerClient,
    GpusPerClient,
    Name,
    Overrides,
    ResultsDir,
    Seed,
)
from fedsyn_flwr.errors import UserError

if TYPE_CHECKING:
    from fedsyn_flwr.plan import Plan
    from fedsyn_flwr.runner import RunResult
    from fedsyn_flwr.superlink import LocalSuperLink

DEFAULT_CONF = "digits-hfmds"
DEMO = ("digits-fedavg", "digits-hfmds")

app = typer.Typer(
    name="fedsyn",
    help="Federated learning with data synthesis (HFMDS-FL, MrTF and their baselines) on Flower.",
    no_args_is_help=True,
    rich_markup_mode=None,  # as text, wrapped to the terminal
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 2."""
    import click

    try:
        code = app(standalone_mode=False)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"fedsyn-flwr {version('fedsyn-flwr')} (flwr {version('flwr')})")
        raise typer.Exit


@app.callback()
def fedsyn(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated learning with data synthesis (HFMDS-FL, MrTF and their baselines) on Flower."""


@app.command()
def run(
    conf: Conf = DEFAULT_CONF,
    config: Overrides = None,
    clients: Clients = None,
    cpus_per_client: CpusPerClient = 1,
    gpus_per_client: GpusPerClient = 0.0,
    actors: Actors = None,
    seed: Seed = None,
    name: Name = None,
    results_dir: ResultsDir = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run --name from its last checkpoint."),
    ] = False,
) -> None:
    """Simulate one federated training and follow it.

    CONF is a run-config TOML file or the name of one in conf/, such as digits-fedavg;
    digits-hfmds if left out. Keys it does not name have the defaults of pyproject.toml.

    Exits 0 only when every round was run; 1 when the run failed, 2 when something in the call
    or the configuration is wrong (nothing is started then), 130 on Ctrl-C.
    """
    from fedsyn_flwr.plan import merge, prepare
    from fedsyn_flwr.report.summary import final_lines
    from fedsyn_flwr.size import likely_cpus
    from fedsyn_flwr.superlink import LocalSuperLink

    flags = {"seed": seed, "run-name": name, "results-dir": results_dir, "resume": resume or None}
    merge(conf, config or [], flags)  # most mistakes are found here, before anything starts
    with LocalSuperLink(likely_cpus(clients, cpus_per_client, actors), wait=False) as superlink:
        plan = prepare(  # while the SuperLink starts
            conf,
            config or [],
            flags,
            clients=clients,
            cpus_per_client=cpus_per_client,
            gpus_per_client=gpus_per_client,
            actors=actors,
        )
        result = _follow(plan, superlink)
    print("\n".join(final_lines(result)))


@app.command()
def demo(seed: Seed = None, results_dir: ResultsDir = None) -> None:
    """Compare FedAvg with HFMDS-FL in a minute or two.

    Both are trained on the embedded digits, spread very unevenly over 10 clients.
    """
    from fedsyn_flwr.plan import prepare
    from fedsyn_flwr.report.summary import comparison
    from fedsyn_flwr.superlink import LocalSuperLink

    flags = {"seed": seed, "results-dir": results_dir}
    with LocalSuperLink(wait=False) as superlink:
        plans = [prepare(conf, flags=flags, clients=10) for conf in DEMO]
        results = {}
        for plan in plans:
            results[plan.config.federation.strategy] = _follow(plan, superlink)
            print()
    print("\n".join(comparison(results)))
    print(f"results in {plans[0].folder.parent}")


app.command()(cli_grid.compare)
app.command()(cli_report.cost)
app.command()(cli_report.plot)
app.command()(cli_report.figure)
app.command()(cli_deploy.deploy_check)


@app.command()
def methods() -> None:
    """List the methods, for the key `strategy`."""
    from fedsyn_flwr.registry import METHODS

    _list({name: method.summary for name, method in METHODS.items()})


@app.command()
def datasets() -> None:
    """List the datasets, for the key `dataset`."""
    from fedsyn_flwr.data.specs import DATASETS

    _list({name: spec.summary for name, spec in DATASETS.items()})


@app.command()
def models() -> None:
    """List the models, for the key `model`."""
    from fedsyn_flwr.models import MODELS

    _list({name: spec.summary for name, spec in MODELS.items()})


@app.command()
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

    from fedsyn_flwr.data.heatmap import save_heatmap
    from fedsyn_flwr.plan import find_conf, label_counts
    from fedsyn_flwr.report.labels import label_table

    table, names, title = label_counts(conf, config or [], {"seed": seed}, clients)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(title, highlight=False)
    console.print(label_table(table, names))
    path = (output or Path(f"partition-{find_conf(conf).stem}.png")).absolute()
    save_heatmap(table, names, path, title)
    print(f"heat map in {path}")


def _follow(plan: "Plan", superlink: "LocalSuperLink | None" = None) -> "RunResult":
    """Run a plan before the user's eyes; leave with exit code 1 unless it was completed."""
    from fedsyn_flwr.report.console import for_terminal
    from fedsyn_flwr.report.summary import failure_lines
    from fedsyn_flwr.runner import execute

    print("\n".join(plan.headline()), flush=True)
    try:
        result = execute(plan.run_config, plan.options, superlink, for_terminal())
    except KeyboardInterrupt:
        print(f"stopped by the user; results so far in {plan.folder}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if not result.completed:
        print("\n".join(failure_lines(result)), file=sys.stderr)
        raise typer.Exit(1)
    return result


def _list(entries: dict[str, str]) -> None:
    """Names and summaries, aligned."""
    width = max(map(len, entries))
    for name, summary in entries.items():
        print(f"{name:<{width}}  {summary}")
