"""FedAvg (McMahan et al., arXiv 1602.05629): w ← Σ p_k w_k."""

from fedsyn_flwr.server.strategy import FedStrategy


class FedAvg(FedStrategy):
    """The average of the clients' models: the base strategy as it is."""
