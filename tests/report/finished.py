"""Folders of finished runs, and the command that looks at them."""

import json
import sys

import pytest

from fedsyn_flwr.cli import app


def rows(*accuracies, seconds=1.0):
    """A round per accuracy."""
    return [
        {"round": i, "server/test_accuracy": a, "seconds/round": seconds, "bytes/up": 500_000}
        for i, a in enumerate(accuracies, 1)
    ]


def write(folder, status="completed", accuracies=(0.1, 0.3), last=None, **config):
    """A run's folder with that configuration; ``last`` is measured in its last round."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": config}))
    (folder / "status.json").write_text(json.dumps({"status": status}))
    made = rows(*accuracies)
    made[-1:] = [{**row, **(last or {})} for row in made[-1:]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return folder


def fedsyn(monkeypatch, *arguments):
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["fedsyn", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        app.main()
    return exit_.value.code or 0
