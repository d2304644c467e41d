"""FedYogi (Reddi et al., arXiv 2003.00295): Adam with a v that changes additively."""

from fedsyn_flwr.server.strategy import FedStrategy


class FedYogi(FedStrategy):
    """FedAvg whose server optimiser is `server_optimizer.yogi`."""

    server_optimizer = "yogi"
