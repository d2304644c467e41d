"""docs/your-own-method.md, followed: its blocks go into a copy of the project, which runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks, commands

PAGE = ROOT / "docs/your-own-method.md"
PARTS = ("fedsyn_flwr", "strategies", "clients", "conf", "tests", "pyproject.toml", "README.md")


def named_file(block: Block) -> str:
    """The file that the prose before a block names first, empty if none."""
    found = re.search(r"`((?:clients|strategies|conf|tests)/[\w/.-]+)`", block.before)
    return found[1] if found else ""


def insert(file: Path, after: str, text: str) -> None:
    old = file.read_text()
    assert old.count(after) == 1
    file.write_text(old.replace(after, after + text))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the page's method in it."""
    folder = tmp_path_factory.mktemp("copy")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(
                source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.md")
            )
        else:
            shutil.copy(source, folder / part)
    for block in blocks(PAGE):
        if block.language == "python" and block.text.startswith("    "):
            insert(folder / "fedsyn_flwr/registry.py", "METHODS = {\n", block.text)
        elif block.language == "toml" and not named_file(block):
            insert(folder / "pyproject.toml", "[tool.flwr.app.config]\n", block.text)
        elif block.language in ("python", "toml"):
            (folder / named_file(block)).write_text(block.text)
    return folder


def call(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, in the copy, which its own code runs."""
    name, *words = line.split()
    module = {"pytest": "pytest", "fedsyn": "fedsyn_flwr"}[name]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_its_own_test_passes(copy: Path) -> None:
    first = commands(PAGE, "bash")[0]
    assert first.startswith("pytest")
    result = call(copy, first)
    assert result.returncode == 0, result.stdout


def test_a_wrong_value_is_one_line(copy: Path) -> None:
    result = call(copy, "fedsyn run digits-feddyn -c feddyn-alpha=0")
    assert result.returncode == 2
    assert "feddyn-alpha" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.sim
def test_it_runs_through_ray(copy: Path) -> None:
    line = commands(PAGE, "bash")[1]
    assert line.startswith("fedsyn run")
    result = call(copy, line)
    assert result.returncode == 0, result.stdout + result.stderr
    found = [json.loads(p.read_text()) for p in (copy / "results").rglob("status.json")]
    assert len(found) == 1
    assert all(f["status"] == "completed" for f in found)
