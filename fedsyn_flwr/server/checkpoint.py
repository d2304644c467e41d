"""Checkpoints: what a run needs to go on with the same bits.

A checkpoint is a pair of files, ``round-N.safetensors`` (arrays) and ``round-N.json`` (everything
else and the SHA-256 of the arrays). The JSON is written last, so a pair is complete when it is
there; a crash in between leaves a file without a partner, which nobody reads. What clients keep
between rounds stays on their nodes, where `VersionedStore` holds every version that a run resumed
from the last checkpoint can ask for.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from fedsyn_flwr import __version__
from fedsyn_flwr.config import FREE_KEYS, Config
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.files import write_whole
from fedsyn_flwr.messages.payload import Group
from fedsyn_flwr.models.flat_model import Vectors

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round.

    ``arrays`` and ``scalars`` are the strategy's own state; ``run`` names the run's state on the
    nodes.
    """

    round: int
    run: str
    model: Vectors
    arrays: Group
    scalars: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    Parameters
    ----------
    folder : Path
        ``<run>/checkpoints``.
    config : Config
        The run's configuration; a checkpoint of another one is refused.
    layout : str
        The model's layout.
    """

    def __init__(self, folder: Path, config: Config, layout: str) -> None:
        self.folder = folder
        self.identity = {
            "version": __version__,
            "layout": layout,
            "config": {k: v for k, v in sorted(config.flat().items()) if k not in FREE_KEYS},
        }

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and drop all but the newest two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"model/{k}": v for k, v in checkpoint.model.items()}
        arrays |= {f"state/{k}": v for k, v in checkpoint.arrays.items()}
        target = self.path(checkpoint.round)
        partial = target.with_name(f".{target.name}.part")
        save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, partial)
        content = {
            "round": checkpoint.round,
            "run": checkpoint.run,
            "scalars": checkpoint.scalars,
            "sha256": sha256(partial),
            **self.identity,
        }
        os.replace(partial, target)
        write_whole(target.with_suffix(".json"), sealed(content))
        for old in self.rounds()[:-KEEP]:
            self.path(old).with_suffix(".json").unlink()
            self.path(old).unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, None if there is none.

        Raises
        ------
        UserError
            If it is damaged or belongs to another version or configuration. Nothing is changed.
        """
        rounds = self.rounds()
        if not rounds:
            return None
        path = self.path(rounds[-1])
        content = self.read(path)
        self.compare(content, path)
        arrays = load_file(path)
        return Checkpoint(
            round=content["round"],
            run=content["run"],
            model={k.removeprefix("model/"): v for k, v in arrays.items() if k[0] == "m"},
            arrays={k.removeprefix("state/"): v for k, v in arrays.items() if k[0] == "s"},
            scalars=content["scalars"],
        )

    def read(self, path: Path) -> dict[str, Any]:
        """The JSON of a checkpoint, once both files are known to be whole."""
        try:
            content = unsealed(path.with_suffix(".json").read_text(encoding="utf-8"))
            whole = sha256(path) == content["sha256"]
        except (OSError, ValueError, KeyError):
            whole = False
        if not whole:
            raise UserError(
                f"checkpoint {path} is damaged: remove {path.stem}.json and {path.name} to go on "
                "from the one before"
            )
        return content

    def compare(self, content: dict[str, Any], path: Path) -> None:
        """Refuse a checkpoint that another version, model or configuration wrote."""
        for name in ("version", "layout"):
            if content[name] != self.identity[name]:
                raise UserError(
                    f"checkpoint {path} is of {name} {content[name]}, this is "
                    f"{self.identity[name]}: start a new run under another run-name"
                )
        theirs, ours = content["config"], self.identity["config"]
        for key in sorted({*theirs, *ours}):
            if theirs.get(key) != ours.get(key):  # type: ignore[attr-defined]
                raise UserError(
                    f"checkpoint {path} was made with {key} = {theirs.get(key)!r}, this run has "
                    f"{ours.get(key)!r}: resume with the same configuration"  # type: ignore[attr-defined]
                )

    def rounds(self) -> list[int]:
        """Rounds with a complete checkpoint, ascending."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"round-(\d+)\.json", p.name) for p in self.folder.iterdir())
        return sorted(int(m.group(1)) for m in found if m)

    def path(self, number: int) -> Path:
        """The arrays' file of a round."""
        return self.folder / f"round-{number}.safetensors"


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(content: dict[str, Any]) -> str:
    """JSON that ends with its own hash."""
    text = json.dumps(content, sort_keys=True)
    return json.dumps({"content": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def unsealed(text: str) -> dict[str, Any]:
    """The content of `sealed`; ValueError if a byte of it changed."""
    outer = json.loads(text)
    if hashlib.sha256(outer["content"].encode()).hexdigest() != outer["sha256"]:
        raise ValueError("hash mismatch")
    content: dict[str, Any] = json.loads(outer["content"])
    return content
