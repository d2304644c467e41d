"""docs/configuration.md is what pyproject.toml and the classes of the keys say."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest
from pydantic import Field

from fedsyn_flwr.config import defaults

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script, loaded from its file: docs/ is no package."""
    spec = importlib.util.spec_from_file_location("configuration", DOCS / "configuration.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0


def test_a_page_that_says_something_else_fails(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "PAGE", tmp_path / "configuration.md")
    assert script.main(["--check"]) == 1
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    page = script.PAGE.read_text(encoding="utf-8")
    script.PAGE.write_text(page.replace("`0.05`", "`0.06`"), encoding="utf-8")
    assert script.main(["--check"]) == 1


def test_every_key_has_its_line_and_a_meaning(script: ModuleType) -> None:
    text = script.PYPROJECT.read_text(encoding="utf-8")
    keys = [key for _, keys in script.sections(text) for key in keys]
    assert [key.name for key in keys] == list(defaults())
    assert all(key.meaning for key in keys)
    assert all(keys for _, keys in script.sections(text))


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "true or false"),
        (Literal["a", "b"], "`a`, `b`"),
        (Annotated[int, Field(ge=0, lt=7)], "integer ≥ 0, < 7"),
        (Annotated[float, Field(gt=0)], "number > 0"),
        (Annotated[str, Field(pattern="^x$")], "text matching `^x$`"),
    ],
)
def test_a_range_in_words(script: ModuleType, hint: object, words: str) -> None:
    assert script.accepted(hint) == words
