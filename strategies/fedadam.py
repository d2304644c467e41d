"""FedAdam (Reddi et al., arXiv 2003.00295): per-weight steps by a running mean of Δ²."""

from strategies.fedavg import FedAvg


class FedAdam(FedAvg):
    """FedAvg whose server optimiser is `server_optim.adam`."""

    server_optimizer = "adam"
