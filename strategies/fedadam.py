"""FedAdam (Reddi et al., arXiv 2003.00295): per-weight steps by a running mean of Δ²."""

from fedsyn_flwr.server.strategy import FedStrategy


class FedAdam(FedStrategy):
    """FedAvg whose server optimiser is `server_optimizer.adam`."""

    server_optimizer = "adam"
