"""FedGAN (arXiv 2006.07228), client half: local steps of an ACGAN, then images made by it."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.mixed_client import MixedClient, MixedParams
from fedsyn_flwr.client.numpy_client import Metrics
from fedsyn_flwr.config import SETTINGS, Count, Positive
from fedsyn_flwr.data import denormalise, normalise
from fedsyn_flwr.messages.payload import Groups
from fedsyn_flwr.privacy import similarity
from fedsyn_flwr.rng import Reshuffled
from fedsyn_flwr.synthesis.acgan import (
    GAN,
    GANSettings,
    Trainer,
    as_images,
    as_pixels,
    build_gan,
)


@dataclass(frozen=True, config=SETTINGS)
class FedGANParams(MixedParams):
    """FedGAN's keys.

    ``gan_rounds`` times every client does ``gan_steps`` steps on both networks, and the server
    averages them, before round 1.
    """

    gan_rounds: Count
    gan_steps: Count
    gan_batch_size: Count
    gan_lr: Positive
    gan_beta1: Annotated[float, Field(ge=0, lt=1)]
    gan_noise: Count
    gan_width: Annotated[int, Field(ge=2)]

    def gan(self) -> GANSettings:
        """The networks and their optimiser."""
        return GANSettings(self.gan_noise, self.gan_width, self.gan_lr, self.gan_beta1)


class FedGANClient(MixedClient):
    """Trains both networks before round 1, and the model on generated images, too, after it."""

    phases: Mapping[str, str] = {
        **MixedClient.phases,
        "gan": "train_gan",
        "samples": "send_samples",
    }
    params: FedGANParams

    # ---- before round 1

    def train_gan(self, groups: Groups) -> tuple[Groups, Metrics]:
        """``gan-steps`` steps from the received networks, with Adam's moments at zero."""
        meter, params = self.meter("gan"), self.params
        gan = self.networks(groups)
        source = self.generator(f"gan-{int(groups['generator']['gan-round'])}")
        if not len(self.indices):
            return vectors_of(gan), {}
        trainer, order = Trainer(gan, params.gan(), source), Reshuffled(len(self.indices), source)
        losses = torch.zeros(2, device=self.worker.device)
        for _ in range(params.gan_steps):
            chosen = self.indices[order.take(params.gan_batch_size)]
            x = as_images(self.pixels(self.worker.data.x(chosen)))
            with meter.counted("step", *x.shape):
                losses += trainer.step(x, self.worker.data.y(chosen))
        generator_loss, discriminator_loss = (losses / params.gan_steps).tolist()
        return vectors_of(gan), {
            "gan/generator_loss": generator_loss,
            "gan/discriminator_loss": discriminator_loss,
            **meter.metrics(),
        }

    def send_samples(self, groups: Groups) -> tuple[Groups, Metrics]:
        """B_g generated images of the classes of as many of this client's samples."""
        meter, source = self.meter("samples"), self.generator("samples")
        y = self.labels[self.choose(source)]
        generator = self.networks(groups).generator.module
        z = generator.draw(len(y), source)
        with torch.no_grad(), meter.counted("generator", len(y)):
            pixels = as_pixels(generator(z, y))
        data = self.worker.data
        answer = self.contribution(normalise(255 * pixels, data.mean, data.std), y)
        metrics: Metrics = {**meter.metrics()}
        if self.params.privacy_report and len(y):
            paired = self.nearest_of_class(pixels, y)
            metrics |= self.given_away(paired, answer["synthetic"])
            counts = torch.bincount(self.labels, minlength=data.num_classes)
            # The pair is the class's nearest image: a guess is right where it has that class.
            metrics["privacy/reid_chance"] = float((counts[y] / len(self.indices)).mean())
        return answer, metrics

    def networks(self, groups: Groups) -> GAN:
        """This process's networks with a message's weights; ``samples`` has no discriminator."""
        data, device = self.worker.data, self.worker.device
        gan = self.worker.once(
            "gan",
            lambda: build_gan(
                self.params.gan(), data.num_classes, data.shape, seed=0, device=device
            ),
        )
        gan.generator.load(groups["generator"])
        if "discriminator" in groups:
            gan.discriminator.load(groups["discriminator"])
        return gan

    def nearest_of_class(self, images: Tensor, y: Tensor) -> Tensor:
        """Position of the real image of its class nearest to each generated one, int64 (m,)."""
        found = torch.empty(len(y), dtype=torch.int64)
        for c in y.unique():
            members = (self.labels == c).nonzero().flatten().cpu()
            pieces = self.indices[members].split(self.worker.settings.output.eval_batch_size)
            real = (self.pixels(self.worker.data.x(piece)).flatten(1) for piece in pieces)
            own = (y == c).cpu()
            where = torch.zeros(int(own.sum()), dtype=torch.int64)
            index, _ = similarity.nearest(images[own].flatten(1), real, where)
            found[own] = members[index.cpu()]
        return found

    def pixels(self, x: Tensor) -> Tensor:
        """Normalised images as pixels in [0, 1]."""
        return denormalise(x, self.worker.data.mean, self.worker.data.std)


def vectors_of(gan: GAN) -> Groups:
    """Both networks as they travel."""
    return {name: network.vectors() for name, network in gan._asdict().items()}
