"""The ClientApp: read the configuration, find this node's data, hand over."""

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from fedsyn_flwr.simulation.dispatch import deliver_promptly


def client_fn(context: Context) -> Client:
    """The client of this node's data, on top of the process's resident worker."""
    # Here, not above: a simulation loads this file before it starts its actors, and PyTorch would
    # keep them waiting.
    from fedsyn_flwr import registry
    from fedsyn_flwr.client.worker import place_of, worker_for

    partition, holding = place_of(context.node_config, context.run_config)
    worker = worker_for(context.run_config, holding)
    method = registry.method(worker.settings.federation.strategy)
    client: Client = method.client(worker, partition).to_client()
    return client


deliver_promptly()  # a simulation loads this file before it starts its engine
app = ClientApp(client_fn=client_fn)
