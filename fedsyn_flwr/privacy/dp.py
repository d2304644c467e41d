"""Differential privacy of the clients' models: clipping, noise, and what they are worth.

The noise comes from a generator that the run's seed decides, so that runs can be repeated. Whoever
knows the seed can take it off again: it shows what the noise costs, and protects nobody by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from importlib.util import find_spec
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import log

from fedsyn_flwr.config import PrivacyConfig
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.models.flat_model import Vectors

FLOATS = ("trainable", "buffers")


def privatise(
    trained: Vectors,
    received: Vectors,
    settings: PrivacyConfig,
    generator: np.random.Generator,
    variances: list[slice],
) -> Vectors:
    """w_t + Δ·min(1, C/‖Δ‖) + N(0, σ²) with Δ = w_k - w_t, over all floating-point values.

    Running statistics count as parameters: they tell of the data, too. A variance that noise
    made negative becomes 0, which costs no privacy. Counters stay.

    Parameters
    ----------
    trained, received : dict
        w_k and w_t.
    settings : PrivacyConfig
        C = ``dp_clip`` (0: no clipping) and σ = ``dp_sigma``.
    generator : np.random.Generator
        Source of the noise.
    variances : list of slice
        Where in the buffers the running variances are.
    """
    if not settings.dp_clip and not settings.dp_sigma:
        return trained
    delta = {k: trained[k].astype(np.float64) - received[k] for k in FLOATS}
    norm = math.sqrt(sum(float(v @ v) for v in delta.values()))
    scale = min(1.0, settings.dp_clip / norm) if settings.dp_clip and norm else 1.0
    sent = dict(trained)
    for kind, change in delta.items():
        noise = settings.dp_sigma * generator.standard_normal(change.shape)
        sent[kind] = (received[kind] + scale * change + noise).astype(np.float32)
    for place in variances:
        np.maximum(sent["buffers"][place], 0, out=sent["buffers"][place])
    return sent


class Accountant:
    """The (ε, δ) that a run has spent towards whoever sees the averaged models.

    One client's data may be replaced by any other; S of K clients are drawn without replacement.
    The sum of n noisy updates has noise of σ√n and changes by at most 2C, so the noise multiplier
    is σ√n / 2C. What is counted are the models: the metrics and sample counts that travel beside
    them are not covered.

    Parameters
    ----------
    settings : PrivacyConfig
        C, σ and δ.
    uniform : bool
        Whether every client weighs the same; else a client's share is not bounded.
    """

    def __init__(self, settings: PrivacyConfig, uniform: bool) -> None:
        self.settings, self.uniform = settings, uniform
        self.releases: Counter[tuple[int, int]] = Counter()
        self.exposed = False
        self.said = ""

    @property
    def active(self) -> bool:
        """Whether anything is done to the updates."""
        return bool(self.settings.dp_clip or self.settings.dp_sigma)

    @property
    def objection(self) -> str:
        """Why there is no guarantee; empty where there is one."""
        if not self.settings.dp_clip:
            return "updates are not clipped (dp-clip = 0)"
        if not self.settings.dp_sigma:
            return "no noise is added (dp-sigma = 0)"
        if not self.uniform:
            return 'a client\'s weight is not bounded: use weighting = "uniform"'
        if self.exposed:
            return "this method sends more than models, without noise"
        return ""

    @property
    def silence(self) -> str:
        """Why no ε is reported; empty where one is."""
        if self.objection:
            return f"no guarantee: {self.objection}"
        missing = find_spec("dp_accounting") is None
        return "epsilon is not computed: pip install 'flwr[dp]'" if missing else ""

    def explain(self) -> None:
        """Say once, in the log, why no ε is reported."""
        if self.active and self.silence not in ("", self.said):
            log(WARNING, "differential privacy: %s", self.silence)
            self.said = self.silence

    def release(self, sampled: int, replied: int) -> None:
        """Count a round: S clients sampled, n of them averaged."""
        if self.active and replied:
            self.releases[sampled, replied] += 1

    def metrics(self, clients: int) -> dict[str, float]:
        """``dp/epsilon`` at ``dp/delta`` so far; nothing where `silence` says why."""
        if not self.active or self.silence or not self.releases:
            return {}
        from flwr.serverapp import (
            GaussianPrivacyEvent,
            NeighboringRelation,
            RdpAccountant,
            SamplingMethod,
        )
        from flwr.serverapp import PrivacyConfig as Population

        sampling, relation = SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE
        accountant = RdpAccountant(Population(self.settings.dp_delta, clients, relation, sampling))
        for (sampled, replied), count in self.releases.items():
            z = self.settings.dp_sigma * math.sqrt(replied) / (2 * self.settings.dp_clip)
            accountant.compose(GaussianPrivacyEvent(z, sampled, clients), count)
        spent = accountant.get_privacy_spent()
        return {"dp/epsilon": spent.epsilon, "dp/delta": spent.delta}

    def state(self) -> tuple[Group, dict[str, Any]]:
        """The rounds counted so far, as JSON values."""
        counted = [[*key, count] for key, count in sorted(self.releases.items())]
        return {}, {"dp-releases": counted, "dp-exposed": self.exposed}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.releases = Counter({(s, n): count for s, n, count in scalars["dp-releases"]})
        self.exposed = scalars["dp-exposed"]
