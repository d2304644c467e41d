"""What a run is once its method is known: keys that this decides, and what is odd about it."""

from typing import Any

from fedsyn_flwr import registry
from fedsyn_flwr.config import Config
from fedsyn_flwr.data import get_spec
from fedsyn_flwr.server import mrtf_variants, server_optimizer


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
    if data.data_dir and get_spec(data.dataset).hub is None and not data.labels:
        found.append(
            f"note: the images of {data.data_dir} are taken for {data.dataset}, with their mean "
            "and deviation; name theirs, such as dataset = mnist"
        )
    return found


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
