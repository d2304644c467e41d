"""NaiveMix (Yoon et al., ICLR 2021, arXiv 2107.00233): mixup with the averages themselves."""

from clients.fedmix import FedMixClient
from fedsyn_flwr.synthesis import mixing


class NaiveMixClient(FedMixClient):
    """FedMix without its approximation."""

    mixed = staticmethod(mixing.naivemix)
