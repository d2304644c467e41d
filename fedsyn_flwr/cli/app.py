"""The ``fedsyn`` command: its parts put together, and what a user's mistake looks like."""

import sys
from typing import Annotated

import typer

from fedsyn_flwr.cli import (
    compare,
    cost,
    demo,
    deploy_check,
    evaluate,
    export,
    figure,
    images,
    lists,
    partition,
    plot,
    predict,
    report,
    run,
)
from fedsyn_flwr.cli.options import INTERRUPTED
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.plugins import share_path

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

    share_path()
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


for command in (
    run.run,
    demo.demo,
    compare.compare,
    cost.cost,
    plot.plot,
    figure.figure,
    report.report,
    evaluate.evaluate,
    predict.predict,
    export.export,
    images.images,
    deploy_check.deploy_check,
    lists.methods,
    lists.datasets,
    lists.models,
    partition.partition,
):
    app.command()(command)


if __name__ == "__main__":
    main()
