"""The app through `flwr run` on a real SuperLink and Ray, with more clients than actors."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Federation
from safetensors import safe_open

from fedsyn_flwr.config import APP_DIR
from fedsyn_flwr.messages import shared_memory
from fedsyn_flwr.registry import METHODS
from fedsyn_flwr.report.console import Silent
from fedsyn_flwr.report.progress import Row
from fedsyn_flwr.simulation import runner
from fedsyn_flwr.simulation.resolve import prepare
from fedsyn_flwr.simulation.superlink import LocalSuperLink

pytestmark = pytest.mark.sim

KEYS: dict[str, Any] = {
    "num-server-rounds": 4,
    "norm": "bn",
    "limit-train": 400,
    "model-width": 0.25,
    "fraction-fit": 0.6,
    "synthesis-every": 2,
    "synthesis-per-client": 4,
    "synthesis-steps": 5,
    "gan-rounds": 2,
    "gan-steps": 2,
    "gan-width": 4,
    "checkpoint-every": 1,
}
CLIENTS = 5


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSuperLink]:
    os.environ["FEDSYN_RESULTS_DIR"] = str(tmp_path_factory.mktemp("by-environment"))
    with LocalSuperLink() as link:
        yield link
    del os.environ["FEDSYN_RESULTS_DIR"]


def simulate(
    superlink: LocalSuperLink,
    folder: Path,
    listener: Any = None,
    actors: int = 2,
    **keys: Any,
) -> runner.RunResult:
    flags = {**KEYS, **keys, "results-dir": str(folder), "run-name": "run"}
    plan = prepare("digits-fedavg", flags=flags, clients=CLIENTS, actors=actors)
    return runner.execute(plan.run_config, plan.options, superlink, listener)


def saved_digest(folder: Path) -> str:
    with safe_open(folder / "model.safetensors", "np") as file:
        return str(file.metadata()["sha256"])


def in_process(folder: Path, **keys: Any) -> str:
    return saved_digest(Federation(folder, CLIENTS, **{**KEYS, **keys}).run().folder)


# What these send and what the server keeps for them is all there is: the others' is among it.
DIFFERENT = (
    "fedavg",
    "fedgan",
    "fedgen",
    "fedmix",
    "feddf",
    "fedyogi",
    "hfmds",
    "moon",
    "scaffold",
)


@pytest.mark.parametrize(
    "strategy",
    [m if m in DIFFERENT else pytest.param(m, marks=pytest.mark.slow) for m in METHODS],
)
def test_two_actors_give_the_bits_of_one_process(
    superlink: LocalSuperLink, tmp_path: Path, strategy: str
) -> None:
    result = simulate(superlink, tmp_path / "ray", strategy=strategy)
    assert result.completed, result.reason
    assert [row["clients/failed"] for row in result.rows] == [0] * 4
    assert saved_digest(result.folder) == in_process(tmp_path / "here", strategy=strategy)
    if shared_memory.supported() and strategy == "hfmds":  # others end before their log has come
        assert "models travel through shared memory" in (result.folder / "flwr.log").read_text()


def test_one_actor_gives_the_bits_of_two(superlink: LocalSuperLink, tmp_path: Path) -> None:
    one = simulate(superlink, tmp_path / "one", strategy="hfmds", actors=1, transport="inline")
    assert one.completed, one.reason
    assert saved_digest(one.folder) == in_process(tmp_path / "here", strategy="hfmds")


# ---- kill -9


def kill(superlink: LocalSuperLink, word: str) -> Callable[[], None]:
    """Kill -9 one process of the simulation, by pid, found by a word of its command line."""

    def now() -> None:
        found = [p for p in superlink.family.alive() if word in p.words]
        assert found, f"no process with {word}"
        os.kill(found[0].pid, signal.SIGKILL)

    return now


class Killer(Silent):
    """Does something once, when a round is reported."""

    def __init__(self, server_round: int, action: Callable[[], None]) -> None:
        self.at_round, self.action = server_round, action

    def round(self, row: Row) -> None:
        if row["round"] == self.at_round:
            self.action()


LONG = {"strategy": "hfmds", "num-server-rounds": 12, "synthesis-steps": 30, "limit-train": 0}


def test_killed_server_resumes_to_the_same_bits(superlink: LocalSuperLink, tmp_path: Path) -> None:
    killer = Killer(5, kill(superlink, "flwr-simulation"))
    dead = simulate(superlink, tmp_path / "ray", killer, **LONG)
    assert dead.status == "failed"
    assert not (dead.folder / "model.safetensors").exists()
    resumed = simulate(superlink, tmp_path / "ray", None, **LONG, resume=True)
    assert resumed.completed, resumed.reason
    assert saved_digest(resumed.folder) == in_process(tmp_path / "here", **LONG)


def test_killed_actor_is_replaced_and_changes_no_bit(
    superlink: LocalSuperLink, tmp_path: Path
) -> None:
    killer = Killer(5, kill(superlink, "ray::ClientAppActor"))
    result = simulate(superlink, tmp_path / "ray", killer, **LONG)
    assert result.completed, result.reason
    assert sum(row["clients/failed"] for row in result.rows) == 0
    assert saved_digest(result.folder) == in_process(tmp_path / "here", **LONG)
    log = (result.folder / "flwr.log").read_text()
    assert "ActorDiedError" in log  # it did die


# ---- flwr run itself


def flwr_run(superlink: LocalSuperLink, *arguments: str) -> str:
    command = ["flwr", "run", str(APP_DIR), "fedsyn", "--stream", *arguments]
    environment = {**os.environ, **superlink._env()}
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    return run.stdout + run.stderr


def newest(folder: Path) -> Path:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            return max(folder.iterdir(), key=lambda p: p.stat().st_mtime)
        time.sleep(0.2)
    raise AssertionError(f"{folder} is empty")


def test_flwr_run_alone_uses_flowers_own_defaults(superlink: LocalSuperLink) -> None:
    """`flwr run . --stream`: two SuperNodes, our default configuration."""
    log = flwr_run(superlink, "--run-config", "num-server-rounds=3")
    folder = newest(Path(os.environ["FEDSYN_RESULTS_DIR"]))
    status = json.loads((folder / "status.json").read_text())
    assert status == {"status": "completed", "rounds": 3, "reason": ""}, log
    assert "round 3/3  accuracy" in log
    assert str(folder) in log


def test_flwr_run_with_a_conf_for_more_clients_says_so(superlink: LocalSuperLink) -> None:
    conf = APP_DIR / "conf" / "digits-fedavg.toml"
    log = flwr_run(superlink, "--run-config", str(conf))
    status = json.loads(
        (newest(Path(os.environ["FEDSYN_RESULTS_DIR"])) / "status.json").read_text()
    )
    assert status["status"] == "failed"
    assert "num-clients = 10, but the federation has 2 SuperNodes" in status["reason"]
    assert "num-clients = 10, but the federation has 2 SuperNodes" in log
    assert "Traceback" not in log


def test_flwr_run_with_a_mistake_ends_with_one_line(superlink: LocalSuperLink) -> None:
    log = flwr_run(superlink, "--run-config", "learning-rate=0")
    assert "error: learning-rate = 0: must be greater than 0" in log
    assert "Traceback" not in log


def test_a_proxy_in_the_environment_is_no_hindrance_and_the_log_is_text(tmp_path: Path) -> None:
    """Nobody listens at the proxy, so whatever goes through it fails."""
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
    proxies = {n: "http://127.0.0.1:9" for name in names for n in (name, name.upper())}
    command = [sys.executable, "-m", "fedsyn_flwr", "run", "digits-fedavg", "--name", "run"]
    command += ["--results-dir", str(tmp_path), "-c", "num-server-rounds=1"]
    done = subprocess.run(
        command, env={**os.environ, **proxies}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "completed: final accuracy" in done.stdout
    log = (tmp_path / "run" / "flwr.log").read_text()
    assert "Starting Flower ServerApp" in log
    assert "\x1b" not in log + done.stdout + done.stderr
