"""Write a run's files as the real server does."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROUNDS = (
    {"server/test_accuracy": 0.5, "server/test_loss": 1.25, "clients/train_loss": 2.0},
    {"server/test_accuracy": 0.75, "server/test_loss": 0.5, "clients/train_loss": 1.0},
)


def write_status(folder: Path, status: str, rounds: int, reason: str = "", **more: Any) -> None:
    """Replace status.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"status": status, "rounds": rounds, "reason": reason, **more})
    (folder / "status.tmp").write_text(text)
    os.replace(folder / "status.tmp", folder / "status.json")


def write_round(folder: Path, number: int, seconds: float = 1.5) -> None:
    """Append a line to metrics.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    row = {"round": number, **ROUNDS[number - 1], "seconds/round": seconds, "clients/failed": 0}
    row |= {"bytes/down": 1_500_000, "bytes/up": 750_000}
    with (folder / "metrics.jsonl").open("a") as out:
        out.write(json.dumps(row) + "\n")


def write_config(folder: Path, run_config: Mapping[str, Any]) -> None:
    """Write config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"config": dict(run_config), "versions": {"flwr": "1.42.0"}}
    (folder / "config.json").write_text(json.dumps(content))


def rewind(folder: Path, rounds: int) -> None:
    """Drop the later lines of metrics.jsonl, as a resumed server does."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.tmp").write_text("".join(lines[:rounds]))
    os.replace(folder / "metrics.tmp", folder / "metrics.jsonl")
