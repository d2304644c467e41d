"""The ServerApp: Flower's entry, quick to load; the work is in `serving`."""

from flwr.app import Context
from flwr.server import ServerApp, ServerAppComponents


def server_fn(context: Context) -> ServerAppComponents:
    """The parts of the run's server."""
    # Here, not above: a simulation loads this file, then the ClientApp's, then starts its actors,
    # and PyTorch would keep them waiting.
    from fedsyn_flwr.server.run import components
    from fedsyn_flwr.simulation.actors import replace_dead_actors

    replace_dead_actors()
    return components(context)


app = ServerApp(server_fn=server_fn)
