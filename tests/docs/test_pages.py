"""Links lead somewhere, code blocks parse, commands name what there is."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from pages import LINK, PAGES, ROOT, anchors, blocks, prose

from fedsyn_flwr.registry import METHODS

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in LINK.findall(prose(page)):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name}: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_blocks_parse(name: str) -> None:
    for block in blocks(ROOT / name):
        if block.language == "python":
            ast.parse(indented_entry(block.text))
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language in ("yaml", "yml"):
            list(yaml.safe_load_all(block.text))


def indented_entry(text: str) -> str:
    """An entry of a dictionary, shown as it stands there, as a whole statement."""
    return f"{{\n{text}}}" if text.startswith("    ") else text


@pytest.mark.parametrize("name", NAMES)
def test_commands_name_what_there_is(name: str) -> None:
    for block in blocks(ROOT / name):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("fedsyn "):
                check(shlex.split(line, comments=True)[1:], line)


OWN = {"feddyn"}  # what your-own-method.md makes


def check(words: list[str], line: str) -> None:
    """A command exists; so does the conf that run and compare take, and so do the methods."""
    commands = {p.stem.replace("_", "-") for p in (ROOT / "fedsyn_flwr/cli").glob("*.py")}
    assert words[0] in commands | {"methods", "datasets", "models"}, line
    if words[0] in ("run", "compare", "partition") and len(words) > 1:
        conf = words[1]
        if not conf.startswith("-") and conf not in ("CONF", "digits-feddyn"):
            name = Path(conf).stem
            assert (ROOT / "conf" / f"{name}.toml").exists() or conf.endswith("mine.toml"), line
    if "--methods" in words:
        named = words[words.index("--methods") + 1].split(",")
        assert set(named) <= set(METHODS) | OWN | {"all"}, line


def test_the_door_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_every_page_is_in_the_menu() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text().split("\nnav:")[1].join(["nav:", ""]))
    listed = set(re.findall(r"[\w/-]+\.md", str(menu)))
    assert listed == {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
