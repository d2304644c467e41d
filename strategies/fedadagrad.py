"""FedAdagrad (Reddi et al., arXiv 2003.00295): per-weight steps that only shrink."""

from fedsyn_flwr.server.strategy import FedStrategy


class FedAdagrad(FedStrategy):
    """FedAvg whose server optimiser is `server_optimizer.adagrad`."""

    server_optimizer = "adagrad"
