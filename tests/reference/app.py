"""The app's side, its own clients and server in this process, and the comparison."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from harness import Federation

from fedsyn_flwr.server import synthetic_pool

from .setting import BASE, Setting, State

FILES = (
    "fedavg",
    "fedprox",
    "scaffold",
    "server_optimizers",
    "moon",
    "fedmmd",
    "hfmds",
    "mrtf",
    "fedmix",
    "hfmds_mrtf",
    "fedgen",
    "fedgan",
)


class Case(NamedTuple):
    """A run to be compared: its line in the table, the reference's file, the keys."""

    name: str
    reference: ModuleType
    keys: dict[str, Any]

    def initial(self) -> State:
        """The weights before round 1."""
        return Setting(self.keys).initial()


def cases() -> Iterator[Case]:
    """All there are; a case whose keys name no strategy is its file's."""
    for file in FILES:
        reference = import_module(f".{file}", __package__)
        for name, keys in reference.CASES.items():
            yield Case(name, reference, {"strategy": file, **keys})


@contextmanager
def doubled() -> Iterator[None]:
    """Whatever says float32 means float64, in the app as in a reference.

    Adam divides small gradients by themselves, and a logarithm near 0 magnifies what it is of: in
    float32 two orders of the same sum part there, and nobody could tell them from a wrong sign.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(np, "float32", np.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(synthetic_pool, "problem_with", lambda *of: None)  # it knows types by name
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)


@lru_cache
def app_weights(name: str, double: bool) -> State:
    """The app's final weights of a case, by tensor."""
    case = next(case for case in cases() if case.name == name)
    own = {key: value for key, value in BASE.items() if key != "num-clients"}
    with TemporaryDirectory() as folder, doubled() if double else nullcontext():
        run = Federation(Path(folder), BASE["num-clients"], **{**own, **case.keys}).run()
        run.strategy.flat.load(run.model)
        return run.strategy.flat.named()


def simulated(case: Case, double: bool, **other: Any) -> State:
    """The reference's final weights, with other keys where told."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), doubled() if double else nullcontext():
        return case.reference.simulate(Setting({**case.keys, **other}))


def difference(ours: State, theirs: State) -> float:
    """max |difference| over all tensors, integers included."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[n].double() - theirs[n].double()).abs().max()) for n in ours)


def largest(ours: State, theirs: State) -> float:
    """The same of weights alone."""
    names = [name for name in ours if name.endswith(("weight", "bias"))]
    return difference({n: ours[n] for n in names}, {n: theirs[n] for n in names})
