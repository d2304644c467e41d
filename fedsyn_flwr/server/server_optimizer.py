"""Server optimisers: FedAvgM (arXiv 1909.06335), FedAdagrad, FedAdam, FedYogi (arXiv 2003.00295).

Pure functions of NumPy vectors. They are not built on `torch.optim`: its Adam divides by bias
corrections that the papers do not have, adds its epsilon elsewhere, and knows no Yogi.

With Δ = mean(w_k) - w_t and the moments m = 0, v = τ² before the first step::

    avgm     m ← β₁m + Δ                                               w ← w + η·m
    others   m ← β₁m + (1-β₁)Δ                                         w ← w + η·m/(√v + τ)
    adagrad  v ← v + Δ²
    adam     v ← β₂v + (1-β₂)Δ²
    yogi     v ← v - (1-β₂)Δ²·sign(v - Δ²)

Arithmetic and moments are float64, the model stays float32. So FedAvgM with β₁ = 0 and η = 1 is
the average bit for bit: w + (mean - w) is exact unless a weight shrinks by 2²⁹ in one round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsyn_flwr.config import ServerOptimizerConfig
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.models.flat_model import Vectors

MOMENT = "moment-"
DEFAULT_LR = {"avgm": 1.0, "adagrad": 0.1, "adam": 0.01, "yogi": 0.01}


@dataclass(frozen=True)
class Optimizer:
    """A server optimiser: which, and its constants.

    ``lr`` is η > 0, ``beta1`` and ``beta2`` lie in [0, 1), ``tau`` is τ > 0: the larger, the less
    adaptive. avgm with ``beta1`` = 0 and ``lr`` = 1 is FedAvg.
    """

    name: str
    lr: float
    beta1: float
    beta2: float
    tau: float

    def step(self, w: np.ndarray, mean: np.ndarray, moments: Group) -> tuple[np.ndarray, Group]:
        """One round's step from w_t.

        Parameters
        ----------
        w, mean : np.ndarray
            w_t and the clients' average, shape (P,), float32.
        moments : dict
            What the step before returned; empty before the first.

        Returns
        -------
        tuple
            w_{t+1}, float32, and the new moments, float64.
        """
        old = w.astype(np.float64)
        delta = mean.astype(np.float64) - old
        update, moments = RULES[self.name](self, delta, moments or self.start(delta))
        return (old + update).astype(np.float32), moments

    def start(self, like: np.ndarray) -> Group:
        """The moments before the first step: m = 0 and v = τ², the least that the paper allows."""
        return {"m": np.zeros_like(like), "v": np.full_like(like, self.tau**2)}


Rule = Callable[[Optimizer, np.ndarray, Group], tuple[np.ndarray, Group]]


def avgm(o: Optimizer, delta: np.ndarray, moments: Group) -> tuple[np.ndarray, Group]:
    """Heavy-ball momentum on Δ."""
    m = o.beta1 * moments["m"] + delta
    return o.lr * m, {"m": m}


def adagrad(o: Optimizer, delta: np.ndarray, moments: Group) -> tuple[np.ndarray, Group]:
    """v sums Δ²."""
    return _adaptive(o, delta, moments["m"], moments["v"] + delta**2)


def adam(o: Optimizer, delta: np.ndarray, moments: Group) -> tuple[np.ndarray, Group]:
    """v is a running mean of Δ²."""
    v = o.beta2 * moments["v"] + (1 - o.beta2) * delta**2
    return _adaptive(o, delta, moments["m"], v)


def yogi(o: Optimizer, delta: np.ndarray, moments: Group) -> tuple[np.ndarray, Group]:
    """v moves towards Δ² by a step that does not depend on v; it stays ≥ 0."""
    square, v = delta**2, moments["v"]
    return _adaptive(o, delta, moments["m"], v - (1 - o.beta2) * square * np.sign(v - square))


def _adaptive(
    o: Optimizer, delta: np.ndarray, m: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, Group]:
    m = o.beta1 * m + (1 - o.beta1) * delta
    return o.lr * m / (np.sqrt(v) + o.tau), {"m": m, "v": v}


RULES: dict[str, Rule] = {"avgm": avgm, "adagrad": adagrad, "adam": adam, "yogi": yogi}


def preset_or(key: str, value: str, preset: str) -> str:
    """What a method is named after, else the key's value.

    Raises
    ------
    UserError
        If the key names something else than the method does.
    """
    if preset and value not in ("none", preset):
        raise UserError(
            f"{key} = {value!r}: this strategy brings {preset!r}; "
            'use strategy = "fedavg" for another one'
        )
    return preset or value


def chosen(settings: ServerOptimizerConfig, preset: str) -> Optimizer | None:
    """The run's server optimiser, None without one.

    Parameters
    ----------
    settings : ServerOptimizerConfig
        The keys.
    preset : str
        The optimiser of a method that is named after one; empty otherwise.

    Raises
    ------
    UserError
        If the key names another optimiser than the method.
    """
    name = preset_or("server-optimizer", settings.server_optimizer, preset)
    if name == "none":
        return None
    lr = settings.server_lr or DEFAULT_LR[name]
    return Optimizer(name, lr, settings.server_beta1, settings.server_beta2, settings.server_tau)


class ServerOptimizer:
    """A run's server optimiser with what it keeps from round to round.

    Parameters
    ----------
    rule : Optimizer or None
        None leaves every average as it is.
    """

    def __init__(self, rule: Optimizer | None) -> None:
        self.rule = rule
        self.moments: Group = {}

    def step(self, model: Vectors, mean: Vectors) -> Vectors:
        """From w_t and the clients' average to w_{t+1}.

        Only trainable parameters take the step; running statistics and counters are the average's.
        """
        if self.rule is None:
            return mean
        w, self.moments = self.rule.step(model["trainable"], mean["trainable"], self.moments)
        return {**mean, "trainable": w}

    def state(self) -> tuple[Group, dict[str, Any]]:
        """The moments, for checkpoints."""
        return {f"{MOMENT}{name}": array for name, array in self.moments.items()}, {}

    def restore(self, arrays: Group, scalars: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        own = {k: v for k, v in arrays.items() if k.startswith(MOMENT)}
        self.moments = {k.removeprefix(MOMENT): v for k, v in own.items()}


def keys(optimizer: Optimizer | None) -> dict[str, Any]:
    """The keys that a method or a default may decide, with the values the run has."""
    if optimizer is None:
        return {}
    return {"server-optimizer": optimizer.name, "server-lr": optimizer.lr}
