"""The app's final weights are those of plain PyTorch simulations written from the papers."""

import ast
from pathlib import Path

import pytest

from .app import FILES, Case, app_weights, cases, difference, simulated

LIMIT = 1e-5
HERE = Path(__file__).parent
CLOSED = ("strategies", "clients", "server", "client", "losses", "synthesis")
CASES = pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)


@CASES
def test_the_app_ends_at_the_references_weights(case: Case) -> None:
    assert difference(app_weights(case.name), simulated(case)) <= LIMIT


@CASES
def test_another_constant_would_be_seen(case: Case) -> None:
    """Ten times the limit and more, where the reference computes with one key changed."""
    assert difference(app_weights(case.name), simulated(case, **case.reference.OTHER)) > 10 * LIMIT


@pytest.mark.parametrize("file", [*FILES, "setting"])
def test_a_reference_takes_nothing_of_what_it_checks(file: str) -> None:
    tree = ast.parse((HERE / f"{file}.py").read_text(encoding="utf-8"))
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    rooms = [n.removeprefix("fedsyn_flwr.").split(".")[0] for n in names]
    assert not set(rooms) & set(CLOSED) - set(FILES)
