"""The house: rooms import downwards only, and no two modules import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the roof to the ground; modules of one floor may not import each other's rooms.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("fedsyn_flwr.__main__",),
    ("fedsyn_flwr.cli", "fedsyn_flwr.server_app", "fedsyn_flwr.client_app"),
    ("fedsyn_flwr.simulation",),
    ("fedsyn_flwr.results",),
    ("fedsyn_flwr.report",),
    ("strategies", "clients"),
    ("fedsyn_flwr.server", "fedsyn_flwr.client"),
    ("fedsyn_flwr.preflight",),
    ("fedsyn_flwr.build",),
    ("fedsyn_flwr.synthesis", "fedsyn_flwr.privacy"),
    ("fedsyn_flwr.messages",),
    ("fedsyn_flwr.data", "fedsyn_flwr.models"),
    ("fedsyn_flwr.losses",),
    ("fedsyn_flwr.compute",),
    ("fedsyn_flwr.config",),
    ("fedsyn_flwr.registry",),
    ("fedsyn_flwr.plugins",),
    ("fedsyn_flwr.files", "fedsyn_flwr.rng"),
    ("fedsyn_flwr.errors", "fedsyn_flwr"),
)


def modules() -> dict[str, Path]:
    """Every module of the app by its dotted name."""
    found = {}
    for top in ("fedsyn_flwr", "strategies", "clients"):
        for path in (ROOT / top).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """The app's modules that a file imports, wherever in it, for types alone included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in submodules]
        else:
            continue
        yield from (name for name in names if name in MODULES)


ARROWS = {name: set(imports(path)) - {name} for name, path in MODULES.items()}


def room(module: str) -> str:
    """The entry of `FLOORS` that a module belongs to: the longest that it begins with."""
    named = [entry for floor in FLOORS for entry in floor]
    return max((n for n in named if f"{module}.".startswith(f"{n}.")), key=len)


def floor(module: str) -> int:
    """0 is the roof."""
    return next(i for i, rooms in enumerate(FLOORS) if room(module) in rooms)


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """Imports that do not lead down, or within one room."""
    return [
        f"{one} -> {other}"
        for one, others in sorted(arrows.items())
        for other in sorted(others)
        if room(one) != room(other) and floor(one) >= floor(other)
    ]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Ways from a module back to itself, each once."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> None:
        if module in way:
            found.append(way[way.index(module) :])
        elif module not in done:
            for other in sorted(arrows.get(module, ())):
                walk(other, [*way, module])
            done.add(module)

    for module in sorted(arrows):
        walk(module, [])
    return found


def test_every_import_leads_down() -> None:
    assert upward(ARROWS) == []


def test_no_modules_import_each_other() -> None:
    """A package's face may name its own parts, so it is no part of a circle."""
    faces = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    inner = {name: others - faces for name, others in ARROWS.items()}
    assert circles(inner) == []


def test_the_test_sees_what_it_looks_for() -> None:
    wrong = {"fedsyn_flwr.losses": {"fedsyn_flwr.server.loop"}, "a": {"b"}, "b": {"a"}}
    assert upward({"fedsyn_flwr.losses": wrong["fedsyn_flwr.losses"]}) == [
        "fedsyn_flwr.losses -> fedsyn_flwr.server.loop"
    ]
    assert circles({"a": {"b"}, "b": {"a"}}) == [["a", "b"]]
    siblings = {"fedsyn_flwr.server.loop": {"fedsyn_flwr.client.worker"}}
    assert len(upward(siblings)) == 1


@pytest.mark.parametrize("package", sorted(n for n, p in MODULES.items() if p.stem == "__init__"))
def test_every_package_says_what_lives_there(package: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[package].read_text(encoding="utf-8")))
    assert text
    assert "." in package or "Read" in text or package != "fedsyn_flwr" or "rooms" in text
