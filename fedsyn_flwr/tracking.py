"""A run's results on disk, each file whole at every moment."""

import json
import math
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from fedsyn_flwr import __version__
from fedsyn_flwr.config import Config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.flat import FlatModel

PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy")


def default_results() -> Path:
    """Where results go unless ``results-dir`` says otherwise."""
    root = os.environ.get("FEDSYN_RESULTS_DIR")
    return Path(root) if root else Path.home() / "fedsyn-results"


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def to_json(value: Any) -> str:
    """JSON without NaN: what is not a number is null."""

    def clean(v: Any) -> Any:
        if isinstance(v, float) and not math.isfinite(v):
            return None
        if isinstance(v, dict):
            return {k: clean(x) for k, x in v.items()}
        return v

    return json.dumps(clean(value), allow_nan=False)


class Tracker:
    """Writes ``<results-dir>/<run-name>/``.

    Raises
    ------
    UserError
        If that folder already holds another run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / "metrics.jsonl").exists():
            raise UserError(f"{folder} already holds a run: choose another run-name or remove it")
        folder.mkdir(parents=True, exist_ok=True)
        self.rounds = 0
        self.status("running", phase="start")

    def config(self, config: Config, **more: Any) -> None:
        """``config.json``: every key resolved, the seed, versions of what computed."""
        versions = {"fedsyn-flwr": __version__, **{name: version(name) for name in PACKAGES}}
        content = {
            "config": config.flat(),
            "seed": config.federation.seed,
            "versions": {**versions, "python": platform.python_version()},
            **more,
        }
        write_text(self.folder / "config.json", json.dumps(content, indent=2) + "\n")

    def status(self, status: str, reason: str = "", **more: Any) -> None:
        """``status.json``: running, completed, failed or stopped, and why."""
        content = {"status": status, "rounds": self.rounds, "reason": reason, **more}
        write_text(self.folder / "status.json", json.dumps(content) + "\n")

    def round(self, metrics: dict[str, Any]) -> None:
        """A line of ``metrics.jsonl``."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_json(metrics) + "\n")
        self.rounds = int(metrics["round"])

    def model(self, flat: FlatModel) -> None:
        """``model.safetensors``: tensors by name."""
        partial = self.folder / ".model.safetensors.part"
        save_file(flat.named(), partial, metadata={"sha256": flat.digest()})
        os.replace(partial, self.folder / "model.safetensors")
