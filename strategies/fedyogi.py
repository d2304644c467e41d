"""FedYogi (Reddi et al., arXiv 2003.00295): Adam with a v that changes additively."""

from strategies.fedavg import FedAvg


class FedYogi(FedAvg):
    """FedAvg whose server optimiser is `server_optim.yogi`."""

    server_optimizer = "yogi"
