"""MrTF (Li et al., arXiv 2305.04201): the average, refined on the server's unlabelled test set."""

from fedsyn_flwr.server.strategy import FedStrategy
from strategies.hfmds import HFMDS


class MrTF(FedStrategy):
    """FedAvg whose `refine` distils to `fedsyn_flwr.server.mrtf_target`: eqs. (6), (10) to (12)."""

    refinement = "mrtf"


class HFMDSMrTF(HFMDS):
    """HFMDS-FL with the same refinement: synthetic images for clients, targets for the server."""

    refinement = "mrtf"
