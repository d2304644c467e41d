"""A SuperLink of our own leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from fake_app.install import install

from fedsyn_flwr.report import measures
from fedsyn_flwr.simulation import superlink
from fedsyn_flwr.simulation.ray_cluster import RayHead
from fedsyn_flwr.simulation.resolve import Options
from fedsyn_flwr.simulation.runner import execute
from fedsyn_flwr.simulation.superlink import LocalSuperLink, SuperLinkError, to_toml


@pytest.fixture
def app(tmp_path):
    """The fake app, ready for `flwr run`."""
    return install(tmp_path / "app")


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_to_toml_survives_a_round_trip():
    keys = {"a": 1, "b": 1e-05, "c": True, "d": 'C:\\x "y" é\n', "e": "", "f": 2.0}
    assert tomllib.loads(to_toml(keys)) == keys


@pytest.mark.parametrize(
    ("given", "exempt"),
    [
        ({}, {"127.0.0.1,localhost,::1"}),
        ({"no_proxy": "localhost, example.org"}, {"localhost,example.org,127.0.0.1,::1"}),
        ({"NO_PROXY": "10.0.0.0/8"}, {"10.0.0.0/8,127.0.0.1,localhost,::1"}),
    ],
)
def test_loopback_is_exempt_from_proxies_and_nothing_else_changes(given, exempt):
    proxies = {"http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}
    found = superlink.past_proxies({**proxies, **given})
    assert set(found) == {"no_proxy", "NO_PROXY", "no_grpc_proxy"}
    assert set(found.values()) == exempt


def test_a_grpc_exemption_of_the_users_own_stays():
    found = superlink.past_proxies({"no_proxy": "a", "no_grpc_proxy": "b"})
    assert found["no_grpc_proxy"] == "b,127.0.0.1,localhost,::1"
    assert found["no_proxy"] == "a,127.0.0.1,localhost,::1"


def test_start_and_end_leave_nothing():
    before = signal.getsignal(signal.SIGTERM)
    with LocalSuperLink() as link:
        assert listens(link.port)
        assert link.simulations() == []
        assert link.trouble() == ""
        assert any("flower-superlink" in p.words for p in link.family.alive())
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    assert link.family.alive() == []
    assert not listens(link.port)
    assert not link.home.exists()
    link.close()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_runs_in_the_users_folder():
    """Ray's actors would import another copy of the app from there."""
    with LocalSuperLink() as link:
        folders = {Path(f"/proc/{p.pid}/cwd").resolve() for p in link.family.alive()}
        assert folders == {link.home.resolve()}


def test_whichever_server_dies_is_named():
    with LocalSuperLink() as link:
        link.ray.stop()
        assert link.trouble().startswith("Ray ended: ")
        link.ray.ensure(1)
        assert link.trouble() == ""
        link._process.kill()
        link._process.wait()
        assert link.trouble().startswith("the SuperLink ended: ")
    assert link.family.alive() == []


def test_a_ray_that_does_not_listen_is_killed(tmp_path):
    """`ray start` loses a SIGTERM that reaches it in some moments of its start."""
    deaf = "trap '' TERM; touch up; while true; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", deaf], cwd=tmp_path, start_new_session=True)
    head = RayHead("ray", (1, 2), tmp_path, lambda command, log: process)
    head.ensure(1)
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    head.stop(patience=0.2)
    assert process.returncode == -signal.SIGKILL
    assert not head.running


def test_sigterm_becomes_an_interrupt_and_ends_the_superlink(monkeypatch):
    with pytest.raises(KeyboardInterrupt), LocalSuperLink() as link:
        os.kill(os.getpid(), signal.SIGTERM)
    assert link.family.alive() == []
    assert not link.home.exists()


def test_a_superlink_that_cannot_start_says_so(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(superlink, "free_port", lambda: taken.getsockname()[1])
        monkeypatch.setattr(LocalSuperLink, "_healthy", lambda self: False)
        link = LocalSuperLink()
        with pytest.raises(SuperLinkError, match="the SuperLink did not start: "):
            link.__enter__()
    assert link.family.alive() == []
    assert not link.home.exists()


@pytest.mark.sim
def test_two_runs_on_one_superlink(app, tmp_path):
    """The second starts on the same SuperLink after the first; its crash is told from success."""
    results = {}
    keys = {"results-dir": str(tmp_path / "results"), "num-server-rounds": 2}
    with LocalSuperLink() as link:
        for name in ("ok-1", "crash-1"):
            run_config = {**keys, "run-name": name}
            results[name] = execute(run_config, Options(2, 1), link, app_dir=app)
    completed, crashed = results["ok-1"], results["crash-1"]
    assert (completed.status, completed.rounds, completed.reason) == ("completed", 2, "")
    assert measures.accuracies(completed.rows) == [(1, 0.5), (2, 0.75)]
    assert measures.traffic(completed.rows) == (3_000_000, 1_500_000)
    assert (crashed.status, crashed.rounds) == ("failed", 0)
    assert crashed.reason == "RuntimeError: the fake server crashed before its first word"
    assert json.loads((crashed.folder / "status.json").read_text())["status"] == "failed"
    assert link.family.alive() == []
    assert not listens(link.port)


@pytest.mark.sim
def test_a_killed_simulation_is_noticed_soon(app, tmp_path):
    keys = {"results-dir": str(tmp_path), "num-server-rounds": 2, "run-name": "die-1"}
    result = execute(keys, Options(2, 1), app_dir=app)
    assert result.reason == "the simulation's process was killed (out of memory?)"
    assert result.status == "failed"
    assert result.seconds < 40  # Flower's own heartbeat needs 60
