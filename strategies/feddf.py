"""FedDF (Lin et al., arXiv 2006.07242): the average is distilled to the clients' mean logits."""

from strategies.fedavg import FedAvg


class FedDF(FedAvg):
    """FedAvg whose refinement is `distillation.average_logits`."""

    refinement = "feddf"
