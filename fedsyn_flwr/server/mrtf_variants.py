"""What a refinement's keys mean: MrTF (arXiv 2305.04201) by its paper and by its authors' code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedsyn_flwr.config import RefinementConfig
from fedsyn_flwr.server.server_optimizer import preset_or

RELEASED_POWER = 0.75


@dataclass(frozen=True)
class Reading:
    """In what the paper and the authors' code differ.

    ``std_batch`` samples share a standard deviation (0 = all); ``factor`` is the clusters';
    ``power`` tempers AvgLogi; ``first`` is the first round with clusters; ``guard``: clusters that
    say nothing are not used; ``together``: clients and global models share one softmax;
    ``remember``: targets are a running mean over the rounds; ``distribute``: clients get the
    refined model.
    """

    tau: float
    std_batch: int
    factor: float
    power: float
    first: int
    centre: bool
    guard: bool
    together: bool
    remember: bool
    distribute: bool

    @staticmethod
    def of(s: RefinementConfig) -> Reading:
        """The reading that ``mrtf-variant`` names."""
        if s.mrtf_variant == "paper":
            start, centre = s.mrtf_clr_start, s.mrtf_clr_center
            options = {"guard": True, "together": False, "remember": False}
            send = s.mrtf_distribute
            return Reading(
                s.mrtf_tau, 0, s.mrtf_tau, 1.0, start, centre, distribute=send, **options
            )
        return Reading(
            tau=1.0,
            std_batch=s.mrtf_batch,
            factor=2 * s.mrtf_tau,
            power=RELEASED_POWER,
            first=1,
            centre=False,
            guard=False,
            together=True,
            remember=True,
            distribute=False,
        )


def resolved(settings: RefinementConfig, preset: str) -> RefinementConfig:
    """The keys with what the method brings; FedDF is one row of MrTF's ablation."""
    name: Any = preset_or("refinement", settings.refinement, preset)
    modules = "avglogi" if name == "feddf" else settings.mrtf_modules
    return replace(settings, refinement=name, mrtf_modules=modules)


def keys(settings: RefinementConfig) -> dict[str, Any]:
    """The resolved keys that a method may decide."""
    return {"refinement": settings.refinement, "mrtf-modules": settings.mrtf_modules}
