"""The files of a run's folder."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedsyn_flwr.tracking import Tracker


def test_status_from_many_threads(tmp_path: Path) -> None:
    """Every client's thread reports progress; none may trip over another's half-written file."""
    tracker = Tracker(tmp_path / "run")
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda i: tracker.status("running", done=i), range(800)))
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "running"
