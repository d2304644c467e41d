"""The files of a run's folder."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

from flwr.common import Code, FitIns, FitRes, Parameters, Status

from fedsyn_flwr.server.requests import exchange
from fedsyn_flwr.server.tracking import Tracker


def test_status_from_many_threads(tmp_path: Path) -> None:
    """Every client's thread reports progress; none may trip over another's half-written file."""
    tracker = Tracker(tmp_path / "run")
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda i: tracker.status("running", done=i), range(800)))
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "running"


class Quick:
    """A client that answers soon."""

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        sleep(0.01)
        return FitRes(Status(Code.OK, ""), ins.parameters, 1, {})


def test_nothing_is_said_of_an_answer_after_it() -> None:
    """Else a late "running" would be written over how the run ended."""
    said: list[tuple[int, int]] = []

    def slow(done: int, total: int) -> None:
        sleep(0.02)
        said.append((done, total))

    message = FitIns(Parameters([b""], "numpy.ndarray"), {"round": 1})
    roster, messages = (dict.fromkeys(range(3), part) for part in (Quick(), message))
    assert len(list(exchange(roster, messages, None, slow))) == 3  # type: ignore[arg-type]
    assert said == [(1, 3), (2, 3), (3, 3)]
