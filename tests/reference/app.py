"""The app's side, its own clients and server in this process, and the comparison."""

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import torch
from harness import Federation

from .setting import BASE, Setting, State

FILES = ("fedavg", "fedprox", "scaffold", "server_optimizers")


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


def app(keys: dict[str, Any]) -> State:
    """The app's final weights, by name."""
    with TemporaryDirectory() as folder:
        own = {key: value for key, value in BASE.items() if key != "num-clients"}
        run = Federation(Path(folder), BASE["num-clients"], **{**own, **keys}).run()
        run.strategy.flat.load(run.model)
        return run.strategy.flat.named()


@lru_cache
def app_weights(name: str) -> State:
    """The same of a case, computed once."""
    return app(next(case.keys for case in cases() if case.name == name))


def difference(ours: State, theirs: State) -> float:
    """max |difference| over all tensors, integers included."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[n].double() - theirs[n].double()).abs().max()) for n in ours)


def simulated(case: Case, **other: Any) -> State:
    """The reference's final weights."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        return case.reference.simulate(Setting({**case.keys, **other}))
