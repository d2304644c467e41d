"""FedMix and NaiveMix (Yoon et al., ICLR 2021, arXiv 2107.00233), server half."""

from fedsyn_flwr.messages.schema import Schema
from fedsyn_flwr.server.strategy import FedStrategy
from fedsyn_flwr.server.update import Update
from fedsyn_flwr.synthesis.mixing import average_count


class FedMix(FedStrategy):
    """Mean-augmented federated learning: averages of images and labels, pooled before round 1."""

    makes_pool = True
    soft_labels = True

    def prepare(self) -> None:
        """Ask all clients for their averages; the model is not needed for that.

        Raises
        ------
        UserError
            If fewer than ``min-success-fraction`` of them send any: there is no second time.
        """
        averages = self.ask_all("means", server_round=1, with_model=False)
        answered = self.pool.renew(averages, 1, self.at_most, len(self.roster))
        self.need(answered, "sent averages")

    def at_most(self, update: Update) -> int:
        """As many averages as the client's samples fill."""
        return average_count(update.examples, self.params.fedmix_mean_size)

    def expected(self, phase: str) -> Schema:
        """Averages, which the pool looks at."""
        return {"synthetic": None} if phase == "means" else {}
