"""FedGAN (arXiv 2006.07228), server half: two networks are averaged before the model is trained."""

from logging import WARNING

import numpy as np
from flwr.common import log

from fedsyn_flwr.messages.payload import Groups
from fedsyn_flwr.messages.schema import Schema, like
from fedsyn_flwr.rng import derive
from fedsyn_flwr.server.averaging import RunningAverage
from fedsyn_flwr.server.metric_means import MetricMeans
from fedsyn_flwr.server.parts import Parts
from fedsyn_flwr.server.strategy import FedStrategy
from fedsyn_flwr.server.update import Update
from fedsyn_flwr.synthesis.acgan import build_gan, collapsed

ADVICE = ("where the GAN diverged, lower gan-lr",)


class FedGAN(FedStrategy):
    """An ACGAN trained by all clients before round 1, whose images they all train on after it.

    Attributes
    ----------
    networks : dict
        Generator and discriminator as payload groups.
    sent : dict
        The same as they go to every client, with the number of the GAN's round.
    """

    makes_pool = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        gan = build_gan(
            self.params.gan(),
            self.flat.module.num_classes,
            self.evaluator.data.shape,
            seed=derive(self.federation.seed, "gan"),
            device=self.flat.trainable.device,
        )
        self.networks: Groups = {
            name: network.copy_vectors() for name, network in gan._asdict().items()
        }

    def prepare(self) -> None:
        """``gan-rounds`` of local steps and averaging, then everyone's share of the pool.

        Raises
        ------
        UserError
            If fewer than ``min-success-fraction`` of the clients send networks or images that
            can be used: there is no second time.
        """
        rounds = self.params.gan_rounds
        for number in range(1, rounds + 1):
            self.average_networks(number, rounds)
        for kind in ("flops", "client_seconds"):
            self.record.costs.repeat(f"{kind}/gan", rounds)
        images = self.ask_all("samples", 1, with_model=False)
        answered = self.pool.renew(images, 1, self.at_most, len(self.roster))
        self.need(answered, "sent images", ADVICE)
        self.look()

    def average_networks(self, number: int, rounds: int) -> None:
        """One round of the GAN's own."""
        averages = {name: RunningAverage() for name in self.networks}
        numbered = {**self.networks["generator"], "gan-round": np.array(number)}
        self.sent = {**self.networks, "generator": numbered}
        answered, measured = 0, MetricMeans("gan/")
        for update in self.ask_all("gan", 1, with_model=False, shown=f"GAN {number}/{rounds}"):
            answered += 1
            weight = self.aggregator.weight(update.examples)
            measured.add(update.metrics, weight)
            if weight > 0:
                for name, average in averages.items():
                    average.add(update.groups[name], weight)
        self.need(answered, f"sent networks that can be used in round {number} of the GAN", ADVICE)
        if averages["generator"].weight:
            self.networks = {name: average.mean() for name, average in averages.items()}
        self.record.add(measured.means())

    def at_most(self, update: Update) -> int:
        """B_g."""
        return int(self.params.synthesis_per_client)

    def look(self) -> None:
        """Say which classes the generator makes one image of."""
        if not self.pool.version:
            return
        pool = self.pool.pixels()
        classes = collapsed(pool["images"], pool["labels"])
        self.record.metrics["gan/collapsed_classes"] = len(classes)
        if classes:
            named = ", ".join(map(str, classes))
            log(WARNING, "FedGAN: hardly any variety in class %s: more gan-rounds may help", named)

    def outgoing(self, phase: str, partition: int) -> Groups:
        """What each phase needs of the networks."""
        if phase == "samples":
            return {"generator": self.networks["generator"]}
        return self.sent if phase == "gan" else {}

    def expected(self, phase: str) -> Schema:
        """Both networks; images, which the pool looks at."""
        if phase == "gan":
            return like(self.networks)
        return {"synthetic": None} if phase == "samples" else {}
