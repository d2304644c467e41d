"""FedAvgM (Hsu et al., arXiv 1909.06335): v ← βv + Δ, w ← w + ηv."""

from fedsyn_flwr.server.strategy import FedStrategy


class FedAvgM(FedStrategy):
    """FedAvg whose server optimiser is `server_optimizer.avgm`; β = 0 with η = 1 is FedAvg."""

    server_optimizer = "avgm"
