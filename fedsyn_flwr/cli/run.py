"""``fedsyn run``: one federated training, followed to its end."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn_flwr.cli.options import (
    DEFAULT_CONF,
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

if TYPE_CHECKING:
    from fedsyn_flwr.report.run_result import RunResult
    from fedsyn_flwr.simulation.resolve import Plan
    from fedsyn_flwr.simulation.superlink import LocalSuperLink


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
    from fedsyn_flwr.report.summary import final_lines
    from fedsyn_flwr.simulation.resolve import merge, prepare
    from fedsyn_flwr.simulation.resources import likely_cpus
    from fedsyn_flwr.simulation.superlink import LocalSuperLink

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
        result = follow(plan, superlink)
    print("\n".join(final_lines(result)))


def follow(plan: "Plan", superlink: "LocalSuperLink | None" = None) -> "RunResult":
    """Run a plan before the user's eyes; leave with exit code 1 unless it was completed."""
    from fedsyn_flwr.report.console import for_terminal
    from fedsyn_flwr.report.summary import failure_lines
    from fedsyn_flwr.simulation.runner import execute

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
