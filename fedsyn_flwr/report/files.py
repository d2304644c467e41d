"""A run's folder: reading what may not be there yet, writing so that nobody meets half a file."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none, or none that can be read."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return {}


def read_status(folder: Path) -> dict[str, Any]:
    """A run's status.json."""
    return read_json(folder / "status.json")


def read_config(folder: Path) -> dict[str, Any]:
    """The keys of a run's config.json, with the values it ran with."""
    return dict(read_json(folder / "config.json").get("config", {}))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in read_lines(folder)]


def read_lines(folder: Path) -> list[bytes]:
    """The same, unparsed; a line that is still being written is left out."""
    try:
        whole, _, _ = (folder / "metrics.jsonl").read_bytes().rpartition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [line for line in whole.splitlines() if line.strip()]
