"""HFMDS-FL (arXiv 2308.04761), server half: when to synthesise."""

import math

import numpy as np

from fedsyn_flwr.messages.payload import check_size
from fedsyn_flwr.messages.schema import Schema
from fedsyn_flwr.server.strategy import FedStrategy
from fedsyn_flwr.server.update import Update

LABEL = 8  # bytes, int64


class HFMDS(FedStrategy):
    """Algorithm 1 of HFMDS-FL, the server's lines.

    Every T_d rounds all K clients, not only the sampled ones, invert w_t; the server pools their
    images (replacing the old pool), and the round's training runs with the new pool.
    """

    makes_pool = True

    def before_fit(self, server_round: int) -> None:
        """D_syn ← ∪_k D̂_k when t is a multiple of T_d."""
        if server_round % self.params.synthesis_every == 0:
            images = self.ask_all("synthesis", server_round)
            self.pool.renew(images, server_round, self.at_most, len(self.roster))

    def at_most(self, update: Update) -> int:
        """B_g."""
        return int(self.params.synthesis_per_client)

    def expected(self, phase: str) -> Schema:
        """Synthetic images, which the pool looks at."""
        return {"synthetic": None} if phase == "synthesis" else {}

    def prepare(self) -> None:
        """Refuse a pool that will be too large for a message now, not after T_d rounds.

        Raises
        ------
        UserError
            If the images that the clients have samples for are over the limit.
        """
        if not self.params.uses_pool:
            return
        count = sum(min(self.params.synthesis_per_client, n) for n in self.roster.examples.values())
        count = min(count, self.params.pool_max or count)
        pixels = math.prod(self.evaluator.data.shape)
        size = count * (pixels * np.dtype(self.params.synthetic_dtype).itemsize + LABEL)
        check_size({"model": sum(v.nbytes for v in self.model.values()), "synthetic": size})
