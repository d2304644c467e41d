"""What a run is once its method is known: keys that this decides, and what is odd about it."""

from dataclasses import fields
from typing import Any

from fedsyn_flwr import registry
from fedsyn_flwr.config import (
    Config,
    RefinementConfig,
    ServerOptimizerConfig,
    defaults,
    kebab,
)
from fedsyn_flwr.data import get_spec
from fedsyn_flwr.data.feature_skew import NONE
from fedsyn_flwr.data.own import SCHEME
from fedsyn_flwr.data.user_set import is_user_set
from fedsyn_flwr.server import mrtf_variants, server_optimizer

OF_PARTITION = {
    "dirichlet-alpha": ("dirichlet", "dirichlet-balanced"),
    "classes-per-client": ("classes", "pathological"),
    "shards-per-client": ("shards",),
    "natural-column": ("natural",),
    "partition-file": ("csv",),
    "labels": ("own",),
}
OF_USER_SET = (
    "image-size",
    "image-channels",
    "image-mean",
    "image-std",
    "image-column",
    "label-column",
    "test-fraction",
    "unseen-test-classes",
)
OF_FEDGEN = "server-threads"  # its generator is trained on the server, without a refinement, too
SWITCHED = {
    kebab(field.name): switch
    for cls, switch in (
        (ServerOptimizerConfig, "server-optimizer"),
        (RefinementConfig, "refinement"),
    )
    for field in fields(cls)
    if kebab(field.name) not in (switch, OF_FEDGEN)
}


def remarks(config: Config) -> list[str]:
    """Lines about what is allowed, and probably not meant."""
    found = []
    every = getattr(config.params, "synthesis_every", 0)
    rounds = config.federation.num_server_rounds
    if every > rounds:
        found.append(
            f"note: synthesis-every = {every}, and the run has {rounds} rounds: no images will be "
            "made, and the clients train as in FedAvg"
        )
    data = config.data
    if (
        data.data_dir
        and not is_user_set(data.dataset)
        and get_spec(data.dataset).hub is None
        and not data.labels
    ):
        found.append(
            f"note: the images of {data.data_dir} are taken for {data.dataset}, with their mean "
            "and deviation; name theirs, such as dataset = mnist"
        )
    if ignored := unused(config):
        found.append(f"note: this run makes no use of {', '.join(ignored)}")
    return found


def unused(config: Config) -> list[str]:
    """``key = value (why)`` of the keys that were set to something and change nothing.

    A key that has its default is nobody's wish, and is not named.
    """
    values = config.flat()
    reasons: dict[str, str] = {}
    for cls in registry.param_classes():
        keys = {kebab(field.name) for field in fields(cls)}
        reasons |= dict.fromkeys(keys, f"strategy = {config.federation.strategy}")
    strangers = sorted(config.raw.keys() - defaults().keys())  # another plug-in's
    reasons |= dict.fromkeys(strangers, f"strategy = {config.federation.strategy}")
    for field in fields(config.params) if config.params else ():
        reasons.pop(kebab(field.name), None)
    for key, partitions in OF_PARTITION.items():
        if config.data.partition not in partitions:
            reasons[key] = f"partition = {config.data.partition}"
    if config.data.feature_skew == NONE:
        reasons["feature-skew-strength"] = "feature-skew = none"
    if config.data.partition == SCHEME:
        reasons |= dict.fromkeys(("feature-skew", "feature-skew-strength"), "partition = own")
    if not is_user_set(config.data.dataset):
        reasons |= dict.fromkeys(OF_USER_SET, f"dataset = {config.data.dataset}")
    resolved = {**values, **decided(config)}
    for key, switch in SWITCHED.items():
        if resolved[switch] == "none":
            reasons[key] = f"{switch} = none"
    if not config.evaluation.federated:
        reasons |= unasked(config)
    if not config.privacy.dp_sigma:
        reasons["dp-delta"] = "dp-sigma = 0"
    return [
        f"{key} = {values[key]} ({reason})"
        for key, reason in reasons.items()
        if values[key] != defaults().get(key)
    ]


def unasked(config: Config) -> dict[str, str]:
    """Keys of an evaluation by clients in a run without one, each with the reason."""
    if config.evaluation.client_test_fraction:
        return {"min-evaluate-clients": "fraction-evaluate = 0"}
    return dict.fromkeys(("min-evaluate-clients", "fraction-evaluate"), "client-test-fraction = 0")


def decided(config: Config) -> dict[str, Any]:
    """Key → the value that the run really has, of those that its method may bring; for config.json.

    Raises
    ------
    UserError
        If such a key names something else than the method.
    """
    method = registry.method(config.federation.strategy)
    optimizer = server_optimizer.chosen(config.server, method.strategy.server_optimizer)
    refined = mrtf_variants.resolved(config.refinement, method.strategy.refinement)
    return {
        **server_optimizer.keys(optimizer),
        **mrtf_variants.keys(refined),
        **method.client.fixed,
    }
