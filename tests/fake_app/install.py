"""Make a Flower app out of this folder."""

import re
import shutil
from pathlib import Path

from fedsyn_flwr.config import APP_DIR


def install(folder: Path) -> Path:
    """Copy the fake app there, with the real app's keys; the folder is new."""
    shutil.copytree(Path(__file__).parent, folder)
    text = (APP_DIR / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(fab-exclude|license-files|readme) .*\n", "", text)
    for half in ("server", "client"):
        text = text.replace(f'"fedsyn_flwr.{half}_app:app"', f'"{half}:app"')
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder
