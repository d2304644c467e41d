"""A copy of the app with nothing else in its folder.

``flwr run`` looks at every file below the app's folder, also at a virtual environment's fifty
thousand: seconds for each run. From a copy of the code alone it takes none; and all runs of a grid
run the same code, whatever is edited meanwhile.
"""

import shutil
from pathlib import Path

FILES = ("*.py", "*.toml", "*.md", "LICENSE", ".gitignore")
PATTERNS = ("fab-include", "fab-exclude")


def staged(app_dir: Path, target: Path) -> Path:
    """Copy an app's top-level files and packages; the copy's folder.

    An app that lists files of its own choice for its bundle is used where it is.
    """
    if any(name in (app_dir / "pyproject.toml").read_text(encoding="utf-8") for name in PATTERNS):
        return app_dir
    target.mkdir(parents=True, exist_ok=True)
    for path in (path for pattern in FILES for path in app_dir.glob(pattern)):
        shutil.copy2(path, target)
    ignored = shutil.ignore_patterns("__pycache__")
    for package in (path.parent for path in app_dir.glob("*/__init__.py")):
        shutil.copytree(package, target / package.name, ignore=ignored, dirs_exist_ok=True)
    return target
