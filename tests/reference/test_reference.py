"""The app's final weights are those of plain PyTorch simulations written from the papers."""

import ast
from pathlib import Path

import pytest

from .app import Case, app_weights, cases, difference, simulated

EXACT, USUAL = 1e-9, 1e-5
HERE = Path(__file__).parent
OF_THE_APP = {"fedsyn_flwr.build", "fedsyn_flwr.config", "fedsyn_flwr.models", "fedsyn_flwr.rng"}
# Their Adam and their logarithms magnify float32's rounding: see `app.doubled`.
MAGNIFIED = ("fmds", "hfmds", "mrtf", "feddf", "fedavg, AvgProb", "hfmds-mrtf")
ALL = list(cases())
PLAIN = [case for case in ALL if not case.name.startswith(MAGNIFIED)]
REFERENCES = sorted({path.stem for path in HERE.glob("[!_]*.py")} - {"app", "test_reference"})


def by_name(chosen: list[Case]) -> pytest.MarkDecorator:
    """A test of each."""
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


@by_name(ALL)
def test_the_app_ends_at_the_references_weights(case: Case) -> None:
    assert difference(app_weights(case.name, True), simulated(case, True)) <= EXACT


@pytest.mark.slow
@by_name(PLAIN)
def test_the_same_in_float32_as_it_runs(case: Case) -> None:
    assert difference(app_weights(case.name, False), simulated(case, False)) <= USUAL


@pytest.mark.slow
@by_name(ALL)
def test_another_constant_would_be_seen(case: Case) -> None:
    """Where the reference alone computes with one key changed."""
    other = simulated(case, True, **case.reference.OTHER)
    assert difference(app_weights(case.name, True), other) > USUAL


@pytest.mark.parametrize("file", REFERENCES)
def test_a_reference_takes_nothing_of_what_it_checks(file: str) -> None:
    tree = ast.parse((HERE / f"{file}.py").read_text(encoding="utf-8"))
    taken = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            taken |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = node.module == "fedsyn_flwr"
            taken |= {f"{node.module}.{a.name}" if whole else node.module for a in node.names}
    ours = ("fedsyn_flwr", "strategies", "clients", "harness", "tiny")
    assert {name for name in taken if name.split(".")[0] in ours} <= OF_THE_APP
