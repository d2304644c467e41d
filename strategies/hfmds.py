"""HFMDS-FL (arXiv 2308.04761), server half: when to synthesise."""

from fedsyn_flwr.exchange import Reply
from strategies.pooled import Pooled


class HFMDS(Pooled):
    """Algorithm 1 of HFMDS-FL, the server's lines.

    Every T_d rounds all K clients, not only the sampled ones, invert w_t; the server pools their
    images (replacing the old pool), and the round's training runs with the new pool.
    """

    def before_fit(self, server_round: int) -> None:
        """Synthesis when t is a multiple of T_d."""
        super().before_fit(server_round)
        if server_round % self.params.synthesis_every == 0:
            self.gather("synthesis", server_round)

    def limit(self, reply: Reply) -> int:
        """B_g."""
        return int(self.params.synthesis_per_client)
