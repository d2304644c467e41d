"""Method name → its two halves. The only place that knows methods by name.

Beside those of `METHODS` there are those that installed packages bring as entry points of `GROUP`,
and any ``module:METHOD``.
"""

from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from typing import Any

from fedsyn_flwr import plugins
from fedsyn_flwr.errors import UserError

GROUP = "fedsyn.methods"


@dataclass(frozen=True)
class Method:
    """A method: where its strategy, its client and its keys' dataclass live.

    The parts are named, not imported, so that listing methods stays quick.
    """

    strategy_path: str
    client_path: str
    params_path: str | None
    summary: str

    @property
    def strategy(self) -> Any:
        """The `FedStrategy` subclass."""
        return _resolve(self.strategy_path)

    @property
    def client(self) -> Any:
        """The `FedClient` subclass."""
        return _resolve(self.client_path)

    @property
    def params(self) -> Any:
        """The dataclass of the method's own keys, None if it has none."""
        return _resolve(self.params_path) if self.params_path else None


FEDAVG_CLIENT = "clients.fedavg:FedAvgClient"
FEDAVG_STRATEGY = "strategies.fedavg:FedAvg"
FEDMIX_PARAMS = "clients.fedmix:FedMixParams"
HFMDS_PARAMS = "clients.hfmds:HFMDSParams"

METHODS = {
    "fedavg": Method(
        FEDAVG_STRATEGY,
        FEDAVG_CLIENT,
        None,
        "weighted average of the clients' models (arXiv 1602.05629)",
    ),
    "fedprox": Method(
        FEDAVG_STRATEGY,
        "clients.fedprox:FedProxClient",
        "clients.fedprox:FedProxParams",
        "FedAvg with a proximal term in the local loss (arXiv 1812.06127)",
    ),
    "moon": Method(
        FEDAVG_STRATEGY,
        "clients.moon:MOONClient",
        "clients.moon:MOONParams",
        "contrasts local, global and previous local features (arXiv 2103.16257)",
    ),
    "fedmmd": Method(
        FEDAVG_STRATEGY,
        "clients.fedmmd:FedMMDClient",
        "clients.fedmmd:FedMMDParams",
        "pulls local features to the global model's by their MMD (IEEE VCIP 2018)",
    ),
    "scaffold": Method(
        "strategies.scaffold:Scaffold",
        "clients.scaffold:ScaffoldClient",
        "strategies.scaffold:ScaffoldParams",
        "corrects client drift with control variates (arXiv 1910.06378)",
    ),
    "fedavgm": Method(
        "strategies.fedavgm:FedAvgM",
        FEDAVG_CLIENT,
        None,
        "FedAvg with momentum on the server (arXiv 1909.06335)",
    ),
    "fedadagrad": Method(
        "strategies.fedadagrad:FedAdagrad",
        FEDAVG_CLIENT,
        None,
        "FedAvg with Adagrad on the server (arXiv 2003.00295)",
    ),
    "fedadam": Method(
        "strategies.fedadam:FedAdam",
        FEDAVG_CLIENT,
        None,
        "FedAvg with Adam on the server (arXiv 2003.00295)",
    ),
    "fedyogi": Method(
        "strategies.fedyogi:FedYogi",
        FEDAVG_CLIENT,
        None,
        "FedAvg with Yogi on the server (arXiv 2003.00295)",
    ),
    "fedgen": Method(
        "strategies.fedgen:FedGen",
        "clients.fedgen:FedGenClient",
        "clients.fedgen:FedGenParams",
        "classifiers learn from a generator of features that all of them teach (arXiv 2105.10056)",
    ),
    "fedgan": Method(
        "strategies.fedgan:FedGAN",
        "clients.fedgan:FedGANClient",
        "clients.fedgan:FedGANParams",
        "trains also on images of a GAN that all clients trained before (arXiv 2006.07228)",
    ),
    "fedmix": Method(
        "strategies.fedmix:FedMix",
        "clients.fedmix:FedMixClient",
        FEDMIX_PARAMS,
        "mixes in averages of other clients' images, approximately (arXiv 2107.00233)",
    ),
    "naivemix": Method(
        "strategies.fedmix:FedMix",
        "clients.naivemix:NaiveMixClient",
        FEDMIX_PARAMS,
        "mixup with averages of other clients' images (arXiv 2107.00233)",
    ),
    "fmds": Method(
        "strategies.hfmds:HFMDS",
        "clients.fmds:FMDSClient",
        HFMDS_PARAMS,
        "HFMDS-FL without hard features, mu = 0 (arXiv 2308.04761, eq. 9)",
    ),
    "hfmds": Method(
        "strategies.hfmds:HFMDS",
        "clients.hfmds:HFMDSClient",
        HFMDS_PARAMS,
        "hard-feature-matching data synthesis (arXiv 2308.04761)",
    ),
    "feddf": Method(
        "strategies.feddf:FedDF",
        FEDAVG_CLIENT,
        None,
        "distils the clients' mean logits on the server (arXiv 2006.07242)",
    ),
    "mrtf": Method(
        "strategies.mrtf:MrTF",
        FEDAVG_CLIENT,
        None,
        "refines the average on the server's unlabelled test set (arXiv 2305.04201)",
    ),
    "hfmds-mrtf": Method(
        "strategies.mrtf:HFMDSMrTF",
        "clients.hfmds:HFMDSClient",
        HFMDS_PARAMS,
        "HFMDS-FL's clients with MrTF's refinement on the server",
    ),
}


@cache
def _resolve(path: str) -> Any:
    module, name = path.split(":")
    if module.partition(".")[0] not in ("clients", "strategies"):
        return plugins.attribute(path)
    return getattr(import_module(module), name)


def method(name: str) -> Method:
    """The method of that name.

    Raises
    ------
    UserError
        Listing the names there are.
    """
    if name in METHODS:
        return METHODS[name]
    found = plugins.load(GROUP, name, Method)
    if found is None:
        known = [*METHODS, *plugins.installed(GROUP)]
        hint = plugins.nearest(name, known)
        raise UserError(f"strategy = {name!r}: allowed are {', '.join(known)}{hint}")
    _ = found.strategy, found.client, found.params  # what is wrong with them is said here
    return found


def own_defaults(name: str) -> dict[str, Any]:
    """Field → default of a plug-in's own keys; none for a built-in method, which pyproject has.

    Raises
    ------
    UserError
        If there is no such method, or its class is none of the kind that keys need.
    """
    cls = method(name).params
    if name in METHODS or cls is None:
        return {}
    config = getattr(cls, "__pydantic_config__", {})
    if not config.get("alias_generator"):
        raise UserError(
            f"strategy = {name!r}: {cls.__name__} must be a pydantic.dataclasses.dataclass with "
            "frozen=True and config=fedsyn_flwr.config.SETTINGS"
        )
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}


def installed_defaults() -> dict[str, Any]:
    """Field → default of the own keys of every installed plug-in; broken ones are passed over."""
    found: dict[str, Any] = {}
    for name in plugins.installed(GROUP):
        try:
            found |= own_defaults(name)
        except UserError:
            continue
    return found


def foreign_keys(name: str) -> set[str]:
    """Keys of other methods that a method has no use for, as they are spelled in TOML."""
    keys = [{f.name.replace("_", "-") for f in fields(cls)} for cls in param_classes()]
    own = method(name).params
    return set().union(*keys) - ({f.name.replace("_", "-") for f in fields(own)} if own else set())


def param_classes() -> list[Any]:
    """Every dataclass of method keys, each once."""
    return list(dict.fromkeys(m.params for m in METHODS.values() if m.params))
