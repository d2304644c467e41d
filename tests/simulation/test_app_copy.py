"""The copy of the app that runs are made of: the code, all of it, and nothing else."""

from pathlib import Path

import pytest

from fedsyn_flwr.config import APP_DIR
from fedsyn_flwr.simulation import app_copy
from fedsyn_flwr.simulation.app_copy import staged


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app between a virtual environment and results."""
    kept = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "setup.py")
    package = ("app/__init__.py", "app/part.py", "app/data.txt", "app/deep/__init__.py")
    other = (".venv/lib/x.py", "results/run/config.json", "app/__pycache__/part.pyc", "notes.txt")
    for name in (*kept, *package, *other):
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(f"# {name}")
    return tmp_path / "app"


def test_the_code_is_copied_and_nothing_beside_it(app: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "copy"
    assert staged(app, target) == target
    assert files(target) == {
        *("pyproject.toml", "README.md", "LICENSE", ".gitignore", "setup.py"),
        *("app/__init__.py", "app/part.py", "app/data.txt", "app/deep/__init__.py"),
    }
    assert (target / "app" / "part.py").read_text() == "# app/part.py"


def test_the_copy_keeps_its_code_when_the_app_is_edited(app: Path, tmp_path: Path) -> None:
    target = staged(app, tmp_path / "copy")
    (app / "app" / "part.py").write_text("broken")
    assert (target / "app" / "part.py").read_text() == "# app/part.py"
    staged(app, target)  # an older copy is brought up to date
    assert (target / "app" / "part.py").read_text() == "broken"


@pytest.mark.parametrize("key", app_copy.PATTERNS)
def test_an_app_that_lists_its_own_files_stays_where_it_is(
    app: Path, tmp_path: Path, key: str
) -> None:
    (app / "pyproject.toml").write_text(f'[tool.flwr.app]\n{key} = ["app/*.txt"]\n')
    assert staged(app, tmp_path / "copy") == app
    assert not (tmp_path / "copy").exists()


def test_this_apps_copy_has_all_that_a_run_imports_and_reads(tmp_path: Path) -> None:
    target = staged(APP_DIR, tmp_path / "copy")
    packages = ("fedsyn_flwr", "strategies", "clients")
    code = {
        str(path.relative_to(APP_DIR))
        for name in packages
        for path in (APP_DIR / name).rglob("*.py")
    }
    assert code <= files(target)
    assert (target / "pyproject.toml").read_bytes() == (APP_DIR / "pyproject.toml").read_bytes()
    assert not any(name.endswith(".pyc") for name in files(target))
