"""Writes docs/configuration.md out of ``[tool.flwr.app.config]`` and the classes that check it.

``python docs/configuration.py`` writes the page, ``--check`` fails where another one stands there.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from fedsyn_flwr import registry
from fedsyn_flwr.config import CONCERNS, kebab

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "configuration.md"
PYPROJECT = DOCS.parent / "pyproject.toml"
TABLE = "[tool.flwr.app.config]"
ENTRY = re.compile(r'^([a-z0-9-]+) = ("[^"]*"|[^#\s]+)\s*(?:# (.*))?$')
TYPES = {str: "text", int: "integer", float: "number", bool: "true or false"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

INTRODUCTION = """# Configuration

<!-- Written by `python docs/configuration.py` out of pyproject.toml: do not edit this page. -->

Every key, with its default from `[tool.flwr.app.config]` of `pyproject.toml` and what is accepted.
A file of `conf/` names those that differ; `fedsyn run CONF.toml -c key=value` and
`flwr run . --run-config "key=value"` override them. A wrong key or value is refused in one line
before anything trains.
"""


class Key(NamedTuple):
    """One line of the table in pyproject.toml."""

    name: str
    default: str
    meaning: str


def sections(text: str) -> Iterator[tuple[str, list[Key]]]:
    """The comment lines of the table, each with the keys below it.

    Raises
    ------
    ValueError
        At a line that is neither.
    """
    body = text.split(f"\n{TABLE}\n", 1)[1].split("\n[", 1)[0]
    title, keys = "Run", list[Key]()
    for line in body.splitlines():
        found = ENTRY.match(line)
        if found:
            keys.append(Key(found[1], found[2], found[3] or ""))
        elif line.startswith("# "):
            yield title, keys
            title, keys = line[2:], []
        elif line:
            raise ValueError(f"pyproject.toml, {TABLE}: neither a key nor a comment: {line}")
    yield title, keys


def accepted(hint: Any) -> str:
    """A field's type and range in words, e.g. ``integer ≥ 1``."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    if hint in TYPES:
        return TYPES[hint]
    kind, *extras = get_args(hint)
    bounds = [bound for extra in extras for bound in bounds_of(extra)]
    return " ".join([TYPES[kind], ", ".join(bounds)])


def bounds_of(field: FieldInfo) -> Iterator[str]:
    """The bounds of a field, or the pattern that it must match."""
    for rule in field.metadata:
        for name, sign in SIGNS.items():
            if hasattr(rule, name):
                yield f"{sign} {getattr(rule, name)}"
        if getattr(rule, "pattern", None):
            yield f"matching `{rule.pattern}`"


def ranges() -> dict[str, str]:
    """Key → what is accepted, over the shared classes and every method's own."""
    found: dict[str, str] = {}
    for cls in [*CONCERNS.values(), *registry.param_classes()]:
        hints = get_type_hints(cls, include_extras=True)
        found |= {kebab(field.name): accepted(hints[field.name]) for field in fields(cls)}
    return found


def cell(text: str) -> str:
    """Text that does not end a table's cell."""
    return text.replace("|", "\\|")


def heading(comment: str) -> list[str]:
    """A section's heading; what follows a colon or semicolon stands below it."""
    name, _, rest = re.sub("[:;] ", "\n", comment, count=1).partition("\n")
    return [f"## {name}", "", f"*{rest}*", ""] if " " in rest else [f"## {comment}", ""]


def page() -> str:
    """The whole page."""
    allowed, parts = ranges(), [INTRODUCTION]
    for title, keys in sections(PYPROJECT.read_text(encoding="utf-8")):
        rows = [
            f"| `{k.name}` | `{k.default}` | {cell(allowed[k.name])} | {cell(k.meaning)} |"
            for k in keys
        ]
        head = ["| Key | Default | Accepted | Meaning |", "|---|---|---|---|"]
        parts.append("\n".join([*heading(title), *head, *rows, ""]))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    if "--check" not in arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is not what pyproject.toml says: run `python docs/configuration.py`")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
