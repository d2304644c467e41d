"""MrTF (Li et al., arXiv 2305.04201): the average, refined on the server's unlabelled test set."""

from strategies.fedavg import FedAvg
from strategies.hfmds import HFMDS


class MrTF(FedAvg):
    """FedAvg with the refinement of `fedsyn_flwr.refinement`."""

    refinement = "mrtf"


class HFMDSMrTF(HFMDS):
    """HFMDS-FL with the same refinement: synthetic images for clients, targets for the server."""

    refinement = "mrtf"
