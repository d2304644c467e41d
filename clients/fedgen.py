"""FedGen (Zhu et al., arXiv 2105.10056), client half: the classifier learns from generated z."""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.client.numpy_client import FedClient, Metrics, Step
from fedsyn_flwr.client.training import LocalResult
from fedsyn_flwr.client.worker import label_counts
from fedsyn_flwr.config import SETTINGS, Count, NonNegative, Positive
from fedsyn_flwr.messages.payload import Group, Groups
from fedsyn_flwr.synthesis.generator import (
    Generator,
    TeachingSettings,
    build_generator,
    draw,
    guidance,
)


@dataclass(frozen=True, config=SETTINGS)
class FedGenParams:
    """FedGen's keys.

    ``fedgen_alpha`` and ``fedgen_beta`` are a_1 and b_1, the weights of the two terms in round 1;
    both 0 regress to FedAvg exactly. ``fedgen_decay`` multiplies them from round to round, 1 keeps
    them. The others are the generator's sizes and its training on the server.
    """

    fedgen_alpha: NonNegative
    fedgen_beta: NonNegative
    fedgen_decay: Annotated[float, Field(gt=0, le=1)]
    fedgen_noise: Count
    fedgen_hidden: Count
    fedgen_iterations: Count
    fedgen_batch_size: Annotated[int, Field(ge=2)]
    fedgen_lr: Positive
    fedgen_weight_decay: NonNegative
    fedgen_diversity: NonNegative

    def weights(self, server_round: int) -> tuple[float, float]:
        """(a_t, b_t) of a round; rounds start at 1."""
        decayed = self.fedgen_decay ** (server_round - 1)
        return self.fedgen_alpha * decayed, self.fedgen_beta * decayed

    def teaching(self) -> TeachingSettings:
        """How the server trains the generator."""
        return TeachingSettings(
            iterations=self.fedgen_iterations,
            batch_size=self.fedgen_batch_size,
            lr=self.fedgen_lr,
            weight_decay=self.fedgen_weight_decay,
            diversity=self.fedgen_diversity,
        )


class FedGenClient(FedClient):
    """Local training with features that the server's generator makes.

    In round 1 nothing has been taught yet, no generator is sent, and the loss is the
    cross-entropy.
    """

    params: FedGenParams
    source: Generator | None

    def begin_round(self, groups: Groups) -> None:
        """Freeze the received generator."""
        self.a, self.b = self.params.weights(self.round.number)
        self.source = None
        if "generator" in groups and (self.a or self.b):
            self.source = self.take(groups["generator"])
            self.draws = self.generator("generator")

    def take(self, group: Group) -> Generator:
        """The generator in eval mode without gradients, and the classes it was taught."""
        params, model = self.params, self.flat.module
        flat = self.worker.once(
            "generator",
            lambda: build_generator(
                model.num_classes,
                params.fedgen_noise,
                params.fedgen_hidden,
                model.feature_dim,
                seed=0,
                device=self.worker.device,
            ),
        )
        flat.load(group)
        self.taught = torch.tensor(group["classes"], device=self.worker.device)
        self.classes = self.taught.nonzero().flatten()  # once: it waits for the device
        return flat.module.eval().requires_grad_(False)

    def objective(self, step: Step) -> Tensor:
        """CE + a_t·CE(h(G(y')), y') + b_t·KL(σ(h(G(y))) ‖ σ(h(z))), eq. (5) and the code's KL."""
        if self.source is None:
            return step.cross_entropy
        y, classify = step.batch.y, self.flat.module.classifier
        drawn = self.draw_labels()
        target = guidance(step.logits, classify(self.features(y)), self.taught[y])
        generated = F.cross_entropy(classify(self.features(drawn)), drawn)
        return step.cross_entropy + self.a * generated + self.b * target

    def draw_labels(self) -> Tensor:
        """y', as many as a batch has whatever the client's size, uniform over the taught."""
        return draw(self.classes, self.worker.settings.train.batch_size, self.draws)

    def features(self, y: Tensor) -> Tensor:
        """G(y, ε) of labels (B,), shape (B, d)."""
        assert self.source is not None  # asked for only where there is one
        return self.source(y, self.source.noise(len(y), self.draws))

    def step_kind(self) -> bool:
        """Whether generated features are classified, too."""
        return self.source is not None

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """Send how many samples of each class this client has: its weights as a teacher."""
        counts = label_counts(self.labels, self.flat.module.num_classes)
        return {"labels": {"counts": counts}}, {}
