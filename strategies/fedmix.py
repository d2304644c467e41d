"""FedMix and NaiveMix (Yoon et al., ICLR 2021, arXiv 2107.00233), server half."""

from fedsyn_flwr.server.requests import Reply
from fedsyn_flwr.synthesis.mixing import average_count
from strategies.pooled import Pooled


class FedMix(Pooled):
    """Mean-augmented federated learning: averages of images and labels, pooled before round 1."""

    soft_labels = True

    def prepare(self) -> None:
        """Ask all clients for their averages; the model is not needed for that.

        Raises
        ------
        UserError
            If fewer than ``min-success-fraction`` of them send any: there is no second time.
        """
        self.need(self.gather("means", server_round=1, with_model=False), "sent averages")

    def limit(self, reply: Reply) -> int:
        """As many averages as the client's samples fill."""
        assert reply.result is not None  # it has been accepted
        return average_count(reply.result.num_examples, self.params.fedmix_mean_size)
