"""HFMDS-FL (arXiv 2308.04761), client half: synthesis and training on real + synthetic data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedsyn_flwr.client.mixed_client import MixedClient, MixedParams
from fedsyn_flwr.client.numpy_client import Metrics, Step, as_numpy
from fedsyn_flwr.client.training import Batch, LocalResult
from fedsyn_flwr.compute.cost_meter import Meter
from fedsyn_flwr.compute.cuda_graphs import replayable
from fedsyn_flwr.config import SETTINGS, Count, CountOrZero, NonNegative, Positive
from fedsyn_flwr.messages.payload import Groups
from fedsyn_flwr.synthesis.inversion import InversionSettings, invert, split
from fedsyn_flwr.synthesis.prototypes import Prototypes


@dataclass(frozen=True, config=SETTINGS)
class HFMDSParams(MixedParams):
    """HFMDS-FL's keys.

    ``hfmds_mu`` is μ: 0 regresses to FMDS exactly, useful up to about 1. ``hfmds_lambda`` is λ,
    the share of the old prototype that is kept. ``synthesis_every`` is T_d, ``synthesis_fm_weight``
    w_FM. ``synthesis_patience`` and ``synthesis_batch`` are off at 0.
    """

    synthesis_every: Count
    synthesis_steps: Count
    synthesis_lr: Positive
    synthesis_loss: Literal["ce", "ce+fm", "ce+hfm"]
    synthesis_fm_weight: NonNegative
    synthesis_tv: NonNegative
    synthesis_l2: NonNegative
    synthesis_patience: CountOrZero
    synthesis_tolerance: Annotated[float, Field(ge=0, lt=1)]
    synthesis_batch: CountOrZero
    feature_normaliser: Literal["l1", "softmax"]
    feature_level: Literal["vector", "map"]
    hfmds_mu: Annotated[float, Field(ge=-1, le=10)]
    hfmds_lambda: Annotated[float, Field(ge=0, lt=1)]

    def inversion(self) -> InversionSettings:
        """The inversion's settings: ``synthesis-loss`` decides which terms remain."""
        return InversionSettings(
            steps=self.synthesis_steps,
            lr=self.synthesis_lr,
            fm_weight=0.0 if self.synthesis_loss == "ce" else self.synthesis_fm_weight,
            mu=self.hfmds_mu if self.synthesis_loss == "ce+hfm" else 0.0,
            tv=self.synthesis_tv,
            l2=self.synthesis_l2,
            normaliser=self.feature_normaliser,
            level=self.feature_level,
            patience=self.synthesis_patience,
            tolerance=self.synthesis_tolerance,
            batch=self.synthesis_batch,
        )


class HFMDSClient(MixedClient):
    """Algorithm 1 of HFMDS-FL, the client's lines; its objective (6) is `MixedClient`'s."""

    phases: Mapping[str, str] = {**MixedClient.phases, "synthesis": "synthesise"}
    params: HFMDSParams
    prototypes: Prototypes | None

    # ---- synthesis, eqs. (7)-(12), when t is a multiple of T_d

    def synthesise(self, groups: Groups) -> tuple[Groups, Metrics]:
        """Invert w_t into B_g labelled images (fewer on a smaller client): x̂ ← argmin (12)."""
        meter, positions = self.meter("synthesis"), self.choose(self.generator("synthesis"))
        chosen = self.indices[positions]
        x, y = self.worker.data.x(chosen), self.worker.data.y(chosen)
        if not len(chosen):
            return self.contribution(x, y), {}
        settings = replace(self.params.inversion(), amp=self.worker.settings.train.amp)
        z_bar, passes = self.prototypes_for(x, y, meter), self.worker.graphs.of("synthesis")
        images, loss, steps = invert(
            self.flat.module, x, y, z_bar, settings, self.generator("noise"), meter, passes
        )
        answer = self.contribution(images, y)
        return answer, {
            "synthesis/loss": float(loss.mean()),
            "synthesis/steps": steps,
            **meter.metrics(),
            **self.given_away(positions, answer["synthetic"]),
        }

    def prototypes_for(self, x: Tensor, y: Tensor, meter: Meter) -> Tensor:
        """z̄_y of each image, shape (B, d); classes never trained get the mean under w_t."""
        extract, _ = split(self.flat.module, self.params.feature_level)
        self.flat.module.eval()
        with torch.no_grad():
            size = extract(x[:1]).shape[1]
        if not self.uses_prototypes:
            return torch.zeros(len(y), size, device=x.device)
        kept = self.load_prototypes(size)
        fresh = Prototypes(torch.zeros_like(kept.mean), torch.zeros_like(kept.known))
        missing = ~kept.known[self.labels]
        for part in self.indices[missing.cpu()].split(self.worker.settings.output.eval_batch_size):
            with torch.no_grad(), meter.counted("features", len(part)):
                fresh.observe(extract(self.worker.data.x(part)), self.worker.data.y(part))
        fresh.update(0.0)
        return torch.where(kept.known[:, None], kept.mean, fresh.mean)[y]

    # ---- training, eq. (6), which gathers the prototypes on its way

    def begin_round(self, groups: Groups) -> None:
        """Take D_syn, new or kept; the prototypes are loaded once their size is known."""
        super().begin_round(groups)
        self.prototypes = None

    @replayable
    def watch(self, step: Step) -> Tensor | None:
        """z of the real samples in the ordinary forward pass, shape (B, d)."""
        return self.features_of(step).detach() if self.uses_prototypes else None

    def observe(self, batch: Batch, watched: Tensor) -> None:
        """Σ z per class."""
        if self.prototypes is None:
            self.prototypes = self.load_prototypes(watched.shape[1])
        self.prototypes.observe(watched, batch.y)

    def end_round(self, result: LocalResult) -> tuple[Groups, Metrics]:
        """z̄_c ← (1-λ)·mean_c + λ·z̄_c, kept for the next round."""
        if self.prototypes is not None:
            self.prototypes.update(self.params.hfmds_lambda)
            self.own.save(
                {
                    "mean": as_numpy(self.prototypes.mean),
                    "known": as_numpy(self.prototypes.known),
                }
            )
        return {}, {}

    def features_of(self, step: Step) -> Tensor:
        """The features that prototypes are made of, shape (B, d)."""
        return step.features if self.params.feature_level == "vector" else step.map.flatten(1)

    @property
    def uses_prototypes(self) -> bool:
        """μ = 0 needs none, so FMDS neither gathers nor keeps them."""
        return self.params.inversion().mu != 0

    def load_prototypes(self, size: int) -> Prototypes:
        """The prototypes of this client's last round, none known in its first."""
        classes, device = self.worker.data.num_classes, self.worker.device
        kept = self.own.load()
        if kept is None:
            mean, known = np.zeros((classes, size), np.float32), np.zeros(classes, bool)
        else:
            mean, known = kept["mean"], kept["known"]
        return Prototypes(torch.from_numpy(mean).to(device), torch.from_numpy(known).to(device))
