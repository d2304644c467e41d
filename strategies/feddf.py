"""FedDF (Lin et al., arXiv 2006.07242): the average is distilled to the clients' mean logits."""

from fedsyn_flwr.server.strategy import FedStrategy


class FedDF(FedStrategy):
    """FedAvg whose refinement is `distillation.average_logits`."""

    refinement = "feddf"
