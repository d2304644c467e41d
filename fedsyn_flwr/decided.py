"""Keys that a method decides, whatever the configuration says: written into config.json."""

from typing import Any

from fedsyn_flwr import readings, registry, server_optim
from fedsyn_flwr.config import Config


def decided(config: Config) -> dict[str, Any]:
    """Key → the value that the run really has, of those that its method may bring.

    Raises
    ------
    UserError
        If such a key names something else than the method.
    """
    method = registry.method(config.federation.strategy)
    optimizer = server_optim.chosen(config.server, method.strategy.server_optimizer)
    refined = readings.resolved(config.refinement, method.strategy.refinement)
    return {**server_optim.keys(optimizer), **readings.keys(refined), **method.client.fixed}
