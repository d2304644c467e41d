"""``fedsyn deploy-check``: what a deployment needs, before anything is started."""

from pathlib import Path
from typing import Annotated

import typer

from fedsyn_flwr.cli.options import Conf, Overrides

File = Path | None


def deploy_check(
    conf: Conf = "edge",
    config: Overrides = None,
    connection: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="You: in $FLWR_HOME/config.toml. [default: its default]"),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A node: where the SuperLink is.")
    ] = None,
    root_certificates: Annotated[
        File, typer.Option(metavar="FILE", help="A node, the SuperLink: the ca.crt.")
    ] = None,
    auth_supernode_private_key: Annotated[
        File, typer.Option(metavar="FILE", help="A node: its key.")
    ] = None,
    node_config: Annotated[
        str | None, typer.Option(metavar="KEYS", help="A node: data-path='/data/site-a'.")
    ] = None,
    ssl_certfile: Annotated[
        File, typer.Option(metavar="FILE", help="The SuperLink: its certificate.")
    ] = None,
    ssl_keyfile: Annotated[
        File, typer.Option(metavar="FILE", help="The SuperLink: the certificate's key.")
    ] = None,
) -> None:
    """Check what a deployment needs, before anything is started.

    With the options that flower-supernode or flower-superlink is to be started with, it checks a
    node or the SuperLink's machine; without any, the machine from which you submit runs. CONF is as
    for `fedsyn run`. Prints one line per check; exits 0 only when all are passed.
    """
    from fedsyn_flwr import config as configs
    from fedsyn_flwr.cli import deployment_checks as checker
    from fedsyn_flwr.errors import UserError
    from fedsyn_flwr.simulation.resolve import merge

    place = checker.Place(
        connection=connection,
        superlink=superlink,
        root_certificates=root_certificates,
        node_key=auth_supernode_private_key,
        node_config=node_config,
        certificate=ssl_certfile,
        certificate_key=ssl_keyfile,
    )
    wrong = 0
    for name, check in checker.checks(place, configs.load(merge(conf, config or [], {}))):
        try:
            print(f"ok     {name}: {check()}")
        except UserError as error:
            wrong += 1
            print(f"WRONG  {name}: {error}")
    if wrong:
        print(f"{wrong} of these would stop a run")
        raise typer.Exit(1)
