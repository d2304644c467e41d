"""FedAdagrad (Reddi et al., arXiv 2003.00295): per-weight steps that only shrink."""

from strategies.fedavg import FedAvg


class FedAdagrad(FedAvg):
    """FedAvg whose server optimiser is `server_optim.adagrad`."""

    server_optimizer = "adagrad"
