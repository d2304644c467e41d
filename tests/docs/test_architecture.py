"""docs/architecture.md is what the code says: rooms, parts, hooks."""

import ast
import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from test_imports import FLOORS, MODULES, ROOT

from fedsyn_flwr.client.numpy_client import FedClient
from fedsyn_flwr.server.parts import Parts
from fedsyn_flwr.server.strategy import FedStrategy

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BASES: dict[str, type] = {"server": FedStrategy, "client": FedClient}
SHARED_CLIENTS = ["fedsyn_flwr.client.pool_client", "fedsyn_flwr.client.mixed_client"]


def section(title: str) -> str:
    """What stands under a heading of the page."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def own_names(base: type) -> dict[str, Any]:
    """What a base class of ours defines, those that it is made of included; nothing of Flower's."""
    ours = [c for c in reversed(base.__mro__) if c.__module__.startswith("fedsyn_flwr.")]
    return {name: value for cls in ours for name, value in vars(cls).items()}


def overriding(base: type) -> dict[str, set[str]]:
    """Public name of the base → the files whose classes have their own, base and class aside."""
    found: dict[str, set[str]] = {}
    names = [n for n in MODULES if n.startswith(("strategies.", "clients."))]
    for module in [importlib.import_module(name) for name in [*names, *SHARED_CLIENTS]]:
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and issubclass(cls, base):
                for name in vars(cls).keys() & own_names(base).keys():
                    if not name.startswith("_"):
                        found.setdefault(name, set()).add(module.__name__.rsplit(".")[-1])
    return found


HOOKS = [(row[0], *quoted(row[1]), row[3]) for row in rows("Hooks")]


def test_the_rooms_are_those_of_the_import_test_with_their_own_words() -> None:
    shown = {quoted(row[1])[0]: (int(row[0]), row[2]) for row in rows("Rooms")}
    expected = {}
    for number, floor in enumerate(FLOORS, start=1):
        for name in floor:
            path = MODULES[name]
            if path.name == "__init__.py" and name != "fedsyn_flwr":
                text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                expected[name.removeprefix("fedsyn_flwr.")] = (number, text.splitlines()[0])
    assert {name: (n, words.replace("`", "")) for name, (n, words) in shown.items()} == {
        name: (n, words.replace("`", "")) for name, (n, words) in expected.items()
    }


def test_no_package_is_missing_and_the_drawing_has_them_all() -> None:
    shown = {quoted(row[1])[0] for row in rows("Rooms")}
    packages = {path.parent.name for path in (ROOT / "fedsyn_flwr").glob("*/__init__.py")}
    assert shown == packages | {"strategies", "clients"}
    for drawing in ("rooms.mmd", "rooms.svg"):  # what it is drawn from, and the drawing
        text = (ROOT / "docs" / drawing).read_text(encoding="utf-8")
        assert {name for name in shown if not re.search(rf"\b{name}\b", text)} == set()


def test_the_parts_are_those_that_a_strategy_holds() -> None:
    given = {"config", "flat", "evaluator"}
    held = {f.name: str(f.type).split(" ")[0] for f in fields(Parts) if f.name not in given}
    shown = {quoted(row[0])[0]: quoted(row[1])[0] for row in rows("Parts of a strategy")}
    assert shown == held
    for row in rows("Parts of a strategy"):
        path = ROOT / "fedsyn_flwr" / quoted(row[2])[0]
        assert f"class {quoted(row[1])[0]}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("side", "hook", "files"), HOOKS)
def test_a_hook_is_there_with_these_parameters(side: str, hook: str, files: str) -> None:
    name, _, arguments = hook.rstrip(")").partition("(")
    there = own_names(BASES[side])[name]
    if "(" in hook:
        wanted = [part for part in arguments.split(", ") if part]
        assert list(inspect.signature(there).parameters)[1:] == wanted
    else:
        assert not callable(there)


@pytest.mark.parametrize("side", BASES)
def test_the_table_names_every_hook_and_the_files_that_use_it(side: str) -> None:
    shown = {h.partition("(")[0]: set(quoted(files)) for s, h, files in HOOKS if s == side}
    used = overriding(BASES[side])
    assert used.keys() - shown.keys() == set()
    assert shown == {name: used.get(name, set()) for name in shown}


def test_the_page_names_no_file_that_is_not_there() -> None:
    named = set(re.findall(r"`((?:fedsyn_flwr|strategies|clients|tests|docs)/[\w/]+\.\w+)`", PAGE))
    assert named
    assert [name for name in sorted(named) if not Path(ROOT, name).is_file()] == []
