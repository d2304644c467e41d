"""From the command line to a checked run: the configuration, the size of the simulation.

All that can be wrong is found here, before anything is started or written.
"""

import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsyn_flwr import config as configs
from fedsyn_flwr.config import APP_DIR, Config, RunConfig, Scalar
from fedsyn_flwr.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_CLIENTS = 10
PATH_KEYS = ("data-dir", "results-dir", "state-dir")


@dataclass(frozen=True)
class Options:
    """Size of the simulation.

    Attributes
    ----------
    clients : int
        Virtual clients, K.
    actors : int
        Processes that take turns at playing them.
    cpus_per_client : int
        Cores Ray reserves for an actor.
    gpus_per_client : float
        Share of a GPU Ray reserves for an actor.
    """

    clients: int
    actors: int
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0

    @classmethod
    def fit(
        cls,
        clients: int,
        cpus_per_client: int = 1,
        gpus_per_client: float = 0.0,
        actors: int | None = None,
    ) -> "Options":
        """As many actors as the machine holds and the clients can use.

        Raises
        ------
        UserError
            When the machine cannot hold a single one.
        """
        cores, gpus = cpu_count(), gpu_count() if gpus_per_client > 0 else 0
        for name, value in (("clients", clients), ("cpus-per-client", cpus_per_client)):
            _at_least_one(name, value)
        if cpus_per_client > cores:
            raise UserError(f"--cpus-per-client {cpus_per_client}: this machine has {cores} cores")
        if gpus_per_client < 0 or gpus_per_client > gpus:
            have = f"PyTorch sees {gpus} CUDA GPUs here; 0 shares the machine's device freely"
            raise UserError(f"--gpus-per-client {gpus_per_client:g}: {have}")
        if gpus_per_client > 1 and gpus_per_client % 1:
            raise UserError(
                f"--gpus-per-client {gpus_per_client:g}: must be a whole number, or a share below 1"
            )
        most = min(clients, actors if actors is not None else cores // cpus_per_client)
        _at_least_one("actors", most)
        if gpus_per_client > 0:
            most = min(most, _per_gpu(gpus, gpus_per_client))
        return cls(clients, most, cpus_per_client, gpus_per_client)

    def federation(self) -> dict[str, Scalar]:
        """Keys of ``--federation-config``."""
        return {
            "num-supernodes": self.clients,
            "client-resources-num-cpus": self.cpus_per_client,
            "client-resources-num-gpus": float(self.gpus_per_client),
            "init-args-num-cpus": self.actors * self.cpus_per_client,
        }


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
        federation, data, options = self.config.federation, self.config.data, self.options
        threads = self.config.train.threads_per_client or options.cpus_per_client
        return [
            f"{federation.strategy} on {data.dataset} ({data.partition} partition): "
            f"{options.clients} clients, {federation.num_server_rounds} rounds, "
            f"seed {federation.seed}",
            f"{_count(options.actors, 'actor')} x {_count(threads, 'thread')}, "
            f"device {_device(self.config.train.device, options)}",
            f"results in {self.folder}",
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
        For the first mistake found, also in the data, the partition and the model.
    """
    run_config = merge(conf, overrides, flags or {})
    clients = size.pop("clients", None)
    if clients is None:
        clients = configs.load(run_config).federation.num_clients or DEFAULT_CLIENTS
    options = Options.fit(clients, **size)
    run_config["num-clients"] = clients
    config = configs.load(run_config)
    if not run_config["run-name"]:
        run_config["run-name"] = default_name(config)
        config = configs.load(run_config)
    plan = Plan(run_config, config, options)
    if (plan.folder / "status.json").exists():
        raise UserError(f"{plan.folder} already holds a run: choose another --name or remove it")
    from fedsyn_flwr import preflight  # loads PyTorch: after the quick checks

    preflight.check(config, clients)
    return plan


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
    known = ", ".join(sorted(p.stem for p in named.parent.glob("*.toml")))
    raise UserError(f"conf {conf!r} is neither a .toml file nor one of conf/: {known}")


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
    return f"{federation.strategy}-{config.data.dataset}-seed{federation.seed}-{now}"


def results_folder(run_config: RunConfig) -> Path:
    """``<results-dir>/<run-name>``."""
    return Path(str(run_config["results-dir"])) / str(run_config["run-name"])


def cpu_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_count() -> int:
    """CUDA devices PyTorch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"--{name} {value}: must be at least 1")


def _per_gpu(gpus: int, share: float) -> int:
    """Actors that fit: Ray never spreads a share below 1 over two GPUs."""
    return int(gpus // share) if share >= 1 else gpus * int(1 / share + 1e-9)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _device(device: str, options: Options) -> str:
    """The device in words; asks PyTorch only where the configuration leaves it open."""
    if device == "auto":
        device = "cuda" if gpu_count() else "cpu"
    if device == "cpu":
        return device
    share = options.gpus_per_client
    return f"{device} ({f'{share:g} GPU each' if share else 'shared by all actors'})"
