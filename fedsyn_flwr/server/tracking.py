"""A run's results on disk, each file whole at every moment."""

import json
import math
import os
import platform
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fedsyn_flwr import __version__
from fedsyn_flwr.config import Config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.files import write_arrays, write_whole
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.models.flat_model import FlatModel

POOL = "pool.safetensors"
PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy")


def default_results() -> Path:
    """Where results go unless ``results-dir`` says otherwise."""
    root = os.environ.get("FEDSYN_RESULTS_DIR")
    return Path(root) if root else Path.home() / "fedsyn-results"


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

    Parameters
    ----------
    folder : Path
        The run's folder.
    resumed_from : int, optional
        The round after which the run goes on; lines of later rounds are dropped. None starts a
        new run.

    Raises
    ------
    UserError
        If a new run's folder already holds another one.
    """

    def __init__(self, folder: Path, resumed_from: int | None = None) -> None:
        self.folder = folder
        self.metrics = folder / "metrics.jsonl"
        self._lock = threading.Lock()  # clients' threads report progress, too
        if resumed_from is None and self.metrics.exists():
            raise UserError(
                f"{folder} already holds a run: choose another run-name, remove it, or resume it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.rounds = resumed_from or 0
        self.pool_version = 0
        if self.metrics.exists():
            self.rewind()
        self.status("running", phase="start")

    def rewind(self) -> None:
        """Drop what was written after the last checkpoint, a half-written line included."""
        lines = self.metrics.read_text(encoding="utf-8").splitlines()[: self.rounds]
        write_whole(self.metrics, "".join(line + "\n" for line in lines))

    def config(self, config: Config, keys: Mapping[str, Any], **more: Any) -> None:
        """``config.json``: every key resolved, the seed, versions of what computed.

        ``keys`` have other values than configured: those that the method brings.
        """
        versions = {"fedsyn-flwr": __version__, **{name: version(name) for name in PACKAGES}}
        content = {
            "config": {**config.flat(), **keys},
            "seed": config.federation.seed,
            "versions": {**versions, "python": platform.python_version()},
            **more,
        }
        write_whole(self.folder / "config.json", json.dumps(content, indent=2) + "\n")

    def status(self, status: str, reason: str = "", **more: Any) -> None:
        """``status.json``: running, completed, failed or stopped, and why."""
        content = {"status": status, "rounds": self.rounds, "reason": reason, **more}
        with self._lock:
            write_whole(self.folder / "status.json", json.dumps(content) + "\n")

    def round(self, metrics: dict[str, Any]) -> None:
        """A line of ``metrics.jsonl``."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(to_json(metrics) + "\n")
        self.rounds = int(metrics["round"])

    def pool(self, version: int, images: Callable[[], Group]) -> None:
        """``pool.safetensors``: the shared images, written when they are another version.

        ``images`` gives ``images``, uint8 (N, C, H, W), and ``labels``, int64 (N,).
        """
        if version != self.pool_version:
            write_arrays(self.folder / POOL, images())
            self.pool_version = version

    def model(self, flat: FlatModel, name: str = "model") -> None:
        """``model.safetensors``, or another of such: tensors by name."""
        content = save(flat.named(), metadata={"sha256": flat.digest()})
        write_whole(self.folder / f"{name}.safetensors", content)
