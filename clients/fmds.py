"""FMDS (arXiv 2308.04761, eq. 9): HFMDS-FL without hard features."""

from collections.abc import Mapping
from dataclasses import replace

from clients.hfmds import HFMDSClient
from fedsyn_flwr.client.worker import Worker


class FMDSClient(HFMDSClient):
    """HFMDS-FL with μ = 0, whatever the key says."""

    fixed: Mapping[str, float] = {"hfmds-mu": 0.0}

    def __init__(self, worker: Worker, partition: int) -> None:
        super().__init__(worker, partition)
        self.params = replace(self.params, hfmds_mu=self.fixed["hfmds-mu"])
