"""From the command line to a checked run: the configuration, the size of the simulation.

All that can be wrong is found here, before anything is started or written.
"""

import os
import time
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsyn_flwr import config as configs
from fedsyn_flwr.config import APP_DIR, Config, RunConfig, Scalar, as_name
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.plugins import nearest
from fedsyn_flwr.report.files import read_config, read_status
from fedsyn_flwr.simulation.resources import Options

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_CLIENTS = 10
PATH_KEYS = ("data-dir", "transductive-data-dir", "partition-file", "results-dir", "state-dir")


@dataclass(frozen=True)
class Plan:
    """A run that may be started.

    Attributes
    ----------
    run_config : dict
        Every key; paths absolute, ``run-name`` and ``num-clients`` filled in.
    config : Config
        The same, typed.
    options : Options
        Size of the simulation.
    """

    run_config: dict[str, Scalar]
    config: Config
    options: Options

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return results_folder(self.run_config)

    def headline(self) -> list[str]:
        """What is about to run, on what, and where to."""
        # With PyTorch: not for a mistake in the call.
        from fedsyn_flwr.preflight import label_notes
        from fedsyn_flwr.server.method_defaults import remarks

        federation, data, options = self.config.federation, self.config.data, self.options
        threads = self.config.train.threads_per_client or options.cpus_per_client
        return [
            f"{federation.strategy} on {data.dataset} ({data.partition} partition): "
            f"{options.clients} clients, {federation.num_server_rounds} rounds, "
            f"seed {federation.seed}",
            f"{_count(options.actors, 'actor')} x {_count(threads, 'thread')}, "
            f"device {options.device(self.config.train.device)}",
            f"results in {self.folder}",
            *remarks(self.config),
            *label_notes(self.config),
        ]


def prepare(
    conf: str,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Scalar | None] | None = None,
    **size: Any,
) -> Plan:
    """Merge, complete and check a run.

    Parameters
    ----------
    conf : str
        Path of a run-config file, or the name of one in conf/.
    overrides : sequence of str
        ``key=value``, on top of the conf.
    flags : mapping, optional
        Keys on top of those; None leaves a key alone.
    **size
        For ``Options.fit``; ``clients`` None takes the key num-clients, else 10.

    Raises
    ------
    UserError
        For the first mistake found, also in the data, the partition, the model, and in what the
        results folder holds already.
    """
    plan = draft(conf, overrides, flags, **size)
    check_folder(plan)
    check_parts(plan)
    return plan


def draft(
    conf: str,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Scalar | None] | None = None,
    **size: Any,
) -> Plan:
    """As `prepare`, without a look at data, model or results folder."""
    run_config = merge(conf, overrides, flags or {})
    if run_config["resume"] is True and not run_config["run-name"]:
        raise UserError("--resume needs --name: the run that is to go on")
    clients = size.pop("clients", None)
    if clients is None:
        clients = configs.load(run_config).federation.num_clients or DEFAULT_CLIENTS
    options = Options.fit(clients, **size)
    run_config["num-clients"] = clients
    config = configs.load(run_config)
    run_config["run-name"] = run_config["run-name"] or default_name(config)
    if not run_config["state-dir"] and not os.environ.get("FEDSYN_STATE_DIR"):
        run_config["state-dir"] = str(results_folder(run_config) / "state")
    return Plan(run_config, configs.load(run_config), options)


def check_folder(plan: Plan) -> None:
    """Refuse a results folder that a new run would overwrite, or that cannot be resumed."""
    folder, name = plan.folder, plan.run_config["run-name"]
    there = (folder / "status.json").exists()
    if not plan.config.output.resume:
        if there:
            instead = "choose another --name, remove it, or go on with it by --resume"
            raise UserError(f"{folder} already holds a run: {instead}")
        return
    if not there:
        raise UserError(f"nothing to resume: {folder} holds no run; leave --resume out to start it")
    if different := differing_keys(plan):
        raise UserError(f"{folder} holds a run with other settings: {different}")
    if read_status(folder).get("status") == "completed":
        raise UserError(f"{name} is already completed: results in {folder}")


def differing_keys(plan: Plan) -> str:
    """``seed = 0 there, 1 here; …`` for the run in the plan's folder; '' if they agree.

    A key that the run's version did not have had its default. `FREE_KEYS` may differ, as they may
    between a checkpoint and its continuation. What the method brings may be written down as
    configured or as it is.
    """
    from fedsyn_flwr.server.method_defaults import decided

    theirs, ours = read_config(plan.folder), plan.config.flat()
    if not theirs:  # it ended before it wrote its configuration: nothing to agree with
        return ""
    theirs = {**configs.defaults(), **theirs}
    resolved = {**ours, **decided(plan.config)}
    keys = [
        key
        for key in sorted({*theirs, *ours} - configs.FREE_KEYS)
        if theirs.get(key) not in (ours.get(key), resolved.get(key))
    ]
    return "; ".join(f"{key} = {theirs.get(key)!r} there, {ours.get(key)!r} here" for key in keys)


def check_parts(plan: Plan, checked: set[Hashable] | None = None) -> None:
    """Load the data, split it and build the model once, to see that each of it can be.

    ``checked`` holds what was found to be in order; a plan with the same parts is not loaded.
    """
    from fedsyn_flwr import preflight

    config, clients = plan.config, plan.options.clients
    where = (config.train.device, config.train.amp)
    parts = (config.data, config.model, config.federation.seed, where, clients)
    if checked is None or parts not in checked:
        preflight.check(config, clients)
    if checked is not None:
        checked.add(parts)


def label_counts(
    conf: str, overrides: Sequence[str], flags: Mapping[str, Scalar | None], clients: int | None
) -> "tuple[NDArray[np.int64], list[str], str]":
    """Label counts (K, C) of a conf's partition, the class names, and a title."""
    from fedsyn_flwr import preflight

    config = configs.load(merge(conf, overrides, flags))
    clients = config.federation.num_clients or DEFAULT_CLIENTS if clients is None else clients
    preflight.check(config, clients)
    table, names = preflight.partition_table(config, clients)
    data = config.data
    title = f"{data.dataset}, {data.partition} partition, seed {config.federation.seed}"
    return table, names, title


def merge(
    conf: str, overrides: Sequence[str], flags: Mapping[str, Scalar | None]
) -> dict[str, Scalar]:
    """Defaults, conf, overrides and flags, later ones winning; paths made absolute."""
    keys = configs.merged(
        configs.read_conf(find_conf(conf)),
        dict(parse_override(text) for text in overrides),
        {key: value for key, value in flags.items() if value is not None},
    )
    if not keys["results-dir"]:
        keys["results-dir"] = os.environ.get("FEDSYN_RESULTS_DIR") or "results"
    for key in PATH_KEYS:
        if keys[key]:
            keys[key] = str(Path(str(keys[key])).expanduser().absolute())
    return keys


def find_conf(conf: str) -> Path:
    """A path as it is, a bare name in the app's conf/."""
    path = Path(conf).expanduser()
    if path.suffix == ".toml" or path.is_file():
        return path
    named = APP_DIR / "conf" / f"{conf}.toml"
    if named.is_file():
        return named
    known = sorted(p.stem for p in named.parent.glob("*.toml"))
    listed, hint = ", ".join(known), nearest(conf, known)
    raise UserError(f"conf {conf!r} is neither a .toml file nor one of conf/: {listed}{hint}")


def parse_override(text: str) -> tuple[str, Scalar]:
    """``key=value``, the value a TOML scalar where it is one, else a string.

    Keys whose default is a string keep the value as written: ``run-name=7`` is "7".
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise UserError(f"-c {text!r}: must be key=value, e.g. learning-rate=0.05")
    if isinstance(configs.defaults().get(key), str) and value[:1] not in ("'", '"'):
        return key, value
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    scalar = parsed["value"]
    return key, scalar if len(parsed) == 1 and isinstance(scalar, Scalar) else value


def default_name(config: Config) -> str:
    """``hfmds-digits-seed0-20261130-014632``."""
    federation = config.federation
    now = time.strftime("%Y%m%d-%H%M%S")
    return as_name(f"{federation.strategy}-{config.data.dataset}-seed{federation.seed}-{now}")


def results_folder(run_config: RunConfig) -> Path:
    """``<results-dir>/<run-name>``."""
    return Path(str(run_config["results-dir"])) / str(run_config["run-name"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
