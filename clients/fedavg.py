"""FedAvg (McMahan et al., arXiv 1602.05629): E epochs of SGD on the client's own samples."""

from fedsyn_flwr.client.numpy_client import FedClient


class FedAvgClient(FedClient):
    """Local SGD on plain cross-entropy: the base client as it is."""
