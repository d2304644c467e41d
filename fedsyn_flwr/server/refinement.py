"""The server's own work on a new model: FedDF (arXiv 2006.07242) and MrTF (arXiv 2305.04201).

A part that any strategy can carry, as `server_optimizer` is. The server holds a set without labels
(the transductive set). Every reply's model goes through the one resident network, and only its
logits on that set are kept: S·M·C numbers. Out of them come targets, which the average is distilled
to.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsyn_flwr.compute.cuda_graphs import Graphs
from fedsyn_flwr.compute.process import cpu_threads
from fedsyn_flwr.config import Config, RefinementConfig
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import Group, is_finite
from fedsyn_flwr.models import SplitModel
from fedsyn_flwr.models.flat_model import FlatModel, Vectors
from fedsyn_flwr.server import distillation as d
from fedsyn_flwr.server.mrtf_target import Target, View
from fedsyn_flwr.server.mrtf_variants import resolved


class Images(Protocol):
    """What the server distils on; ``labels`` (M,) are read for metrics only."""

    labels: Tensor

    def __len__(self) -> int:
        """M."""

    def x(self, indices: Tensor) -> Tensor:
        """Normalised images (B, c, h, w) of ``indices`` (B,)."""


class Refiner:
    """Gathers a round's teachers and refines its average.

    Parameters
    ----------
    config : Config
        The run's configuration.
    settings : RefinementConfig
        Its refinement, with the method's own modules filled in.
    flat : FlatModel
        The server's resident model, borrowed for every pass.

    Attributes
    ----------
    metrics : dict
        What is reported of the last refinement.
    refined : dict or None
        The refined model, None where nothing was refined.
    """

    def __init__(self, config: Config, settings: RefinementConfig, flat: FlatModel) -> None:
        self.settings, self.flat = settings, flat
        self.rule = Target(settings)
        self.seed, self.batch_size = config.federation.seed, config.output.eval_batch_size
        self.config = config
        self.passes = Graphs(config.train.cuda_graphs).of("distillation")
        self.set_version = 0
        self.clear(None)

    # ---- a round

    def clear(self, images: Images | None, pool_version: int = 0) -> None:
        """Forget an attempt's teachers; the next ones look at these images.

        The running targets of a pool are forgotten, too, once there is another pool.
        """
        version = pool_version if self.settings.transductive_set == "pool" else 0
        if version != self.set_version:
            self.rule.memory, self.set_version = None, version
        self.images = images
        self.logits: list[Tensor] = []
        self.losses: list[float] = []
        self.metrics: dict[str, float] = {}
        self.seconds = 0.0
        self.refined: Vectors | None = None

    def learn(self, model: Vectors, loss: float) -> None:
        """Take in a client's model, as logits, and its mean training loss.

        One whose logits overflow, as those of finite weights may, teaches nobody.
        """
        if self.images is None:
            return
        with self.timed():
            logits = self.look(model).logits.to(getattr(torch, self.settings.mrtf_logits))
            if logits.isfinite().all():
                self.logits.append(logits)
                self.losses.append(loss)
            else:
                self.count("refinement/silent_clients")

    def refine(self, before: Vectors, after: Vectors, server_round: int) -> Vectors:
        """The model that is sent on: the average itself, where refining would break it.

        Parameters
        ----------
        before, after : dict
            θ_t, which the round began with, and θ_{t+1}, the average.
        """
        if self.images is None or not self.logits:
            return after
        with self.timed():
            past = self.rule.memory
            target = self.target(before, after, server_round)
            refined = self.distilled(after, target, server_round) if target.isfinite().all() else {}
        if not refined or not is_finite(refined):
            self.rule.memory = past
            self.count("refinement/diverged")
            return after
        self.refined = refined
        self.rule.used()
        return refined if self.rule.reading.distribute else after

    def distilled(self, model: Vectors, target: Tensor, server_round: int) -> Vectors:
        """The model after its distillation to targets (M, C)."""
        assert self.images is not None
        self.flat.load(model)
        d.distil(
            self.flat,
            self.images.x,
            target,
            self.distillation(len(target)),
            seed=self.seed,
            key=(server_round,),
            passes=self.passes,
        )
        return self.flat.copy_vectors()

    def count(self, name: str) -> None:
        """One more of what is reported."""
        self.metrics[name] = self.metrics.get(name, 0) + 1

    def distillation(self, images: int) -> d.DistilSettings:
        """How long and how the average is trained towards targets for so many images."""
        s = self.settings
        return d.DistilSettings(
            steps=s.mrtf_steps or d.steps_for(images, s.mrtf_batch),
            lr=s.mrtf_lr,
            weight_decay=s.mrtf_weight_decay,
            batch=s.mrtf_batch,
            clip_norm=self.config.train.clip_norm,
            moving_statistics=s.mrtf_bn == "train",
            amp=self.config.train.amp,
        )

    def target(self, before: Vectors, after: Vectors, server_round: int) -> Tensor:
        """What the refined model is to answer, shape (M, C); fills in the metrics."""
        logits = torch.stack(self.logits).float()
        self.logits = []  # half of the memory, from here on
        average = self.look(after)
        target = self.rule.make(
            logits, self.losses, lambda: self.look(before), average, server_round
        )
        self.metrics |= self.rule.metrics
        self.measure("averaged", average.logits)
        self.measure("ensemble", target)
        return target

    # ---- looking and measuring

    @torch.no_grad()
    def look(self, model: Vectors) -> View:
        """Features and logits of a model on the whole set."""
        assert self.images is not None
        self.flat.load(model)
        module: SplitModel = self.flat.module.eval()
        parts = []
        for indices in torch.arange(len(self.images)).split(self.batch_size):
            features = module.forward_features(self.images.x(indices))
            parts.append((features, module.classifier(features)))
        features, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        return View(features, logits)

    def measure(self, whose: str, scores: Tensor) -> None:
        """Accuracy by the labels, the only use of them; scores (M, C)."""
        assert self.images is not None
        right = scores.argmax(dim=1) == self.images.labels
        name = "pool" if self.settings.transductive_set == "pool" else "test"
        self.metrics[f"{whose}/{name}_accuracy"] = float(right.float().mean())

    @contextmanager
    def timed(self) -> Iterator[None]:
        """With the server's number of threads, on which the bits depend; adds the seconds."""
        start = time.perf_counter()
        with cpu_threads(self.settings.server_threads):
            yield
        self.seconds += time.perf_counter() - start

    # ---- checkpoints

    def state(self) -> tuple[Group, dict[str, Any]]:
        """What crosses rounds: the running targets and the last losses."""
        memory = self.rule.memory
        kept = {} if memory is None else {"refinement-targets": as_array(memory)}
        return kept, {
            "refinement-losses": self.rule.past_losses,
            "refinement-set": self.set_version,
        }

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        kept = arrays.get("refinement-targets")
        self.rule.memory = None if kept is None else torch.from_numpy(kept)
        self.rule.past_losses = list(scalars["refinement-losses"])
        self.set_version = scalars["refinement-set"]


def as_array(tensor: Tensor) -> np.ndarray:
    """A CPU copy."""
    array: np.ndarray = tensor.cpu().numpy().copy()
    return array


def chosen(config: Config, preset: str, makes_pool: bool, flat: FlatModel) -> Refiner | None:
    """The run's refinement, None without one.

    Parameters
    ----------
    config : Config
        The keys.
    preset : str
        The refinement of a method that is named after one; empty otherwise.
    makes_pool : bool
        Whether the method makes synthetic images.
    flat : FlatModel
        The server's resident model.

    Raises
    ------
    UserError
        If the key names another refinement than the method, a pool that never comes, or the
        test images of a server that has none.
    """
    settings = resolved(config.refinement, preset)
    if "none" in (settings.refinement, settings.mrtf_modules):
        return None
    if settings.transductive_set == "pool" and not makes_pool:
        raise UserError(
            f'transductive-set = "pool": {config.federation.strategy} makes no synthetic images; '
            'use "test", or a strategy that makes some, such as hfmds'
        )
    data = config.data
    named = data.transductive_dataset or data.transductive_data_dir
    if (
        config.evaluation.server_data == "none"
        and settings.transductive_set == "test"
        and not named
    ):
        raise UserError(
            f'server-data = "none": {settings.refinement} distils on images that the server has: '
            "name some by transductive-dataset or transductive-data-dir, or set transductive-set = "
            '"pool" with a strategy that makes one, such as hfmds'
        )
    return Refiner(config, settings, flat)
