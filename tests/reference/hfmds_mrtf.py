"""HFMDS-FL's clients with MrTF's server: no paper's method, both papers' parts."""

from typing import Any

from . import hfmds, mrtf
from .setting import Setting, State

CASES: dict[str, dict[str, Any]] = {
    "hfmds-mrtf": {**hfmds.QUICK, **mrtf.QUICK, "strategy": "hfmds-mrtf"}
}
OTHER = {"hfmds-mu": 0.4}


def simulate(s: Setting) -> State:
    """Synthesis and training on the clients, then the refinement."""
    w, clients = s.initial(), hfmds.Clients(s)
    for t in s.rounds:
        w = mrtf.refined(s, w, clients.round(w, t), t)
    return w
