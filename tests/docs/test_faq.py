"""The messages of docs/faq.md are those of the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_imports import MODULES, ROOT

from fedsyn_flwr.config import defaults

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
MESSAGES = [line.strip() for line in FAQ.splitlines() if line.startswith("    ")]


def strings(path: Path) -> Iterator[str]:
    """A file's strings, ``…`` in place of what is filled in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("%s", "…")


PRINTED = {text for path in MODULES.values() for text in strings(path)}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_that_the_app_prints(message: str) -> None:
    assert {message, message.removesuffix("…")} & PRINTED


def test_there_are_messages_and_the_keys_in_them_exist() -> None:
    assert len(MESSAGES) > 30
    named = {"min-success-fraction", "node-timeout", "state-dir", "checkpoint-every", "clip-norm"}
    assert {key for key in named if f"`{key}`" in FAQ} == named <= defaults().keys()
