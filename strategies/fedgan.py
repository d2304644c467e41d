"""FedGAN (arXiv 2006.07228), server half: two networks are averaged before the model is trained."""

from logging import WARNING

import numpy as np
from flwr.common import log

from fedsyn_flwr.config import Config
from fedsyn_flwr.messages.payload import Groups, shapes
from fedsyn_flwr.models.flat_model import FlatModel
from fedsyn_flwr.rng import derive
from fedsyn_flwr.server.averaging import RunningAverage
from fedsyn_flwr.server.evaluation import Evaluator
from fedsyn_flwr.server.metric_means import Tally
from fedsyn_flwr.server.requests import Reply
from fedsyn_flwr.synthesis.acgan import build_gan, collapsed
from strategies.pooled import Pooled


class FedGAN(Pooled):
    """An ACGAN trained by all clients before round 1, whose images they all train on after it.

    Attributes
    ----------
    networks : dict
        Generator and discriminator as payload groups.
    sent : dict
        The same as they go to every client, with the number of the GAN's round.
    """

    advice = ("where the GAN diverged, lower gan-lr",)

    def __init__(self, config: Config, flat: FlatModel, evaluator: Evaluator, run: str) -> None:
        super().__init__(config, flat, evaluator, run)
        gan = build_gan(
            self.params.gan(),
            flat.module.num_classes,
            evaluator.data.shape,
            seed=derive(self.federation.seed, "gan"),
            device=flat.trainable.device,
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
            self.costs.repeat(f"{kind}/gan", rounds)
        self.need(self.gather("samples", 1, with_model=False), "sent images")
        self.look()

    def average_networks(self, number: int, rounds: int) -> None:
        """One round of the GAN's own."""
        averages = {name: RunningAverage() for name in self.networks}
        numbered = {**self.networks["generator"], "gan-round": np.array(number)}
        self.sent = {**self.networks, "generator": numbered}
        answered, measured = 0, Tally("gan/")
        for reply in self.ask_all("gan", 1, with_model=False, shown=f"GAN {number}/{rounds}"):
            result, groups = self.accept(reply)
            if result is None:
                continue
            if any(shapes(groups.get(n, {})) != shapes(own) for n, own in self.networks.items()):
                self.reject(reply.partition, "its generator or discriminator is of another shape")
                continue
            answered += 1
            weight = self.weight_of(result)
            measured.add(result.metrics, weight)
            if weight > 0:
                for name, average in averages.items():
                    average.add(groups[name], weight)
        self.need(answered, f"sent networks that can be used in round {number} of the GAN")
        if averages["generator"].weight:
            self.networks = {name: average.mean() for name, average in averages.items()}
        self.metrics |= measured.means()

    def look(self) -> None:
        """Say which classes the generator makes one image of."""
        if self.pool is None:
            return
        pool = self.shared()
        classes = collapsed(pool["images"], pool["labels"])
        self.metrics["gan/collapsed_classes"] = len(classes)
        if classes:
            named = ", ".join(map(str, classes))
            log(WARNING, "FedGAN: hardly any variety in class %s: more gan-rounds may help", named)

    def enclosed(self, phase: str, partition: int) -> Groups:
        """What each phase needs of the networks."""
        if phase not in ("gan", "samples"):
            return super().enclosed(phase, partition)
        if phase == "samples":
            return {"generator": self.networks["generator"]}
        return self.sent

    def limit(self, reply: Reply) -> int:
        """B_g."""
        return int(self.params.synthesis_per_client)
