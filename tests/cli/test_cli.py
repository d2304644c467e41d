"""The `fedsyn` command as a user sees it; a stand-in runs instead of Flower, except in `sim`."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_app.command import command
from fake_app.install import install
from fake_app.writing import write_round, write_status

from fedsyn_flwr.config import APP_DIR
from fedsyn_flwr.report.files import read_status
from fedsyn_flwr.report.progress import RunFiles
from fedsyn_flwr.simulation.processes import Family
from fedsyn_flwr.simulation.runner import claimed

FAKE_APP = Path(__file__).parents[1] / "fake_app"
ENV = {**os.environ, "PYTHONPATH": str(APP_DIR)}


@pytest.fixture
def fedsyn(tmp_path, monkeypatch, capsys):
    """Call the command; returns exit code, lines on stdout, lines on stderr."""
    return command(tmp_path, monkeypatch, capsys)


def status(folder):
    return json.loads((folder / "status.json").read_text())


def test_a_completed_run(fedsyn, tmp_path):
    size = ["--clients", "5", "--actors", "2"]
    code, out, err = fedsyn("run", "digits-fedavg", "--name", "ok", "-c", "device=cpu", *size)
    assert (code, err) == (0, [])
    rounds = out[0].split(", ")[1]
    total = rounds.split()[0]
    assert out[:3] == [
        f"fedavg on digits (dirichlet partition): 5 clients, {rounds}, seed 0",
        "2 actors x 1 thread, device cpu",
        f"results in {tmp_path}/results/ok",
    ]
    assert out[3:6] == [
        " round  accuracy  test loss  train loss   seconds       down         up",
        f"{'1/' + total:>6}    0.5000     1.2500      2.0000       1.5    1.50 MB     750 kB",
        f"{'2/' + total:>6}    0.7500     0.5000      1.0000       1.5    1.50 MB     750 kB",
    ]
    assert out[6] == "completed: final accuracy 0.7500, best 0.7500 (round 2)"
    assert re.fullmatch(r"2 rounds in 3.0 s, 3\.00 MB down, 1\.50 MB up; \d+\.\d s in all", out[7])
    assert out[8:] == [f"results in {tmp_path}/results/ok"]


def test_a_run_that_lingers_after_its_last_word_is_completed(fedsyn):
    begin = time.monotonic()
    assert fedsyn("run", "digits-fedavg", "--name", "linger")[0] == 0
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("kind", "rounds", "reason"),
    [
        ("fail", 1, "round 2: 1 of 10 clients succeeded, 5 are needed"),
        ("mute", 1, "flwr run ended before the run did, without a word"),
        ("refuse", 0, "RuntimeError: no server started"),
        ("rayless", 0, "Ray ended: no port is free"),
        ("vanish", 1, "the simulation's process was killed (out of memory?)"),
        ("blink", 1, "the simulation's process was killed (out of memory?)"),
    ],
)
def test_a_failed_run_says_why_and_where(fedsyn, tmp_path, kind, rounds, reason):
    code, _, err = fedsyn("run", "digits-fedavg", "--name", kind)
    folder = tmp_path / "results" / kind
    assert code == 1
    assert err == [f"failed after {rounds} rounds: {reason}", f"log in {folder}/flwr.log"]
    assert status(folder) == {"status": "failed", "rounds": rounds, "reason": reason}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "foo"], "-c 'foo': must be key=value, e.g. learning-rate=0.05"),
        (["-c", "lerning-rate=1"], "unknown key 'lerning-rate': did you mean learning-rate?"),
        (["-c", "learning-rate=fast"], "learning-rate = 'fast': must be a valid number"),
        (["-c", "dirichlet-alpha=0"], "dirichlet-alpha = 0: must be greater than 0"),
        (["-c", "strategy=best"], "strategy = 'best': allowed are"),
        (["--seed", "-1"], "seed = -1: must be greater than or equal to 0"),
        (["--name", "a/b"], "run-name = 'a/b': must match"),
        (["--clients", "0"], "--clients 0: must be at least 1"),
        (["--cpus-per-client", "5000"], "--cpus-per-client 5000: this machine has"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(fedsyn, tmp_path, arguments, message):
    code, out, err = fedsyn("run", "digits-fedavg", *arguments)
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_conf_is_one_line(fedsyn):
    assert fedsyn("run", "no.toml") == (
        2,
        [],
        ["error: conf file no.toml does not exist: see conf/ for those there are"],
    )


def test_an_unknown_option_is_not_a_traceback(fedsyn):
    code, out, err = fedsyn("run", "--bogus")
    assert (code, out) == (2, [])
    assert err[-1] == "Error: No such option '--bogus'."


def test_results_are_not_overwritten(fedsyn, tmp_path):
    assert fedsyn("run", "digits-fedavg", "--name", "ok")[0] == 0
    before = (tmp_path / "results" / "ok" / "metrics.jsonl").read_bytes()
    code, _, err = fedsyn("run", "digits-fedavg", "--name", "ok")
    folder = tmp_path / "results" / "ok"
    assert code == 2
    assert err == [
        f"error: {folder} already holds a run: choose another --name, remove it, "
        "or go on with it by --resume"
    ]
    assert (folder / "metrics.jsonl").read_bytes() == before


def broken_off(folder, told="running"):
    """A run killed after its first round, or one that told its own end."""
    write_round(folder, 1, seconds=9.5)
    write_status(folder, told, 1, "" if told == "running" else "an old reason")
    (folder / "flwr.log").write_text("ValueError: an old error\n")
    return folder


@pytest.mark.parametrize("told", ["running", "failed", "stopped"])
def test_resume_goes_on_after_the_rounds_there_are(fedsyn, tmp_path, told):
    folder = broken_off(tmp_path / "results" / "ok", told)
    code, out, err = fedsyn("run", "digits-fedavg", "--name", "ok", "--resume")
    assert (code, err) == (0, [])
    assert [line.split()[0] for line in out[3:5]] == ["round", "2/20"]
    assert out[5] == "completed: final accuracy 0.7500, best 0.7500 (round 2)"
    assert out[6].startswith("2 rounds in 11.0 s")
    assert status(folder) == {"status": "completed", "rounds": 2, "reason": ""}


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("running", {"status": "failed", "rounds": 1, "reason": "checkpoint c is damaged: remove"}),
        ("failed", {"status": "failed", "rounds": 1, "reason": "an old reason"}),
    ],
)
def test_a_run_that_cannot_be_resumed_is_not_completed(fedsyn, tmp_path, told, left):
    folder = broken_off(tmp_path / "results" / "damaged", told)
    code, _, err = fedsyn("run", "digits-fedavg", "--name", "damaged", "--resume")
    assert (code, err[0]) == (1, "failed after 1 rounds: checkpoint c is damaged: remove")
    assert err[1:] == [f"log in {folder}/flwr.log"]
    assert status(folder) == left


def test_what_cannot_be_resumed(fedsyn, tmp_path):
    def complaint(*arguments):
        code, out, err = fedsyn("run", "digits-fedavg", "--resume", *arguments)
        assert (code, out, len(err)) == (2, [], 1)
        return err[0].removeprefix("error: ")

    results = tmp_path / "results"
    assert complaint() == "--resume needs --name: the run that is to go on"
    assert complaint("--name", "x").startswith(f"nothing to resume: {results}/x holds no run")
    assert not results.exists()
    fedsyn("run", "digits-fedavg", "--name", "ok")
    assert complaint("--name", "ok") == f"ok is already completed: results in {results}/ok"
    write_status(results / "ok", "failed", 1, "why")
    (results / "ok" / "config.json").write_text('{"config": {"strategy": "fedavg", "seed": 4}}')
    message = f"{results}/ok holds a run with other settings: "
    assert complaint("--name", "ok", "--seed", "5").startswith(message)
    assert "seed = 4 there, 5 here" in complaint("--name", "ok", "--seed", "5")


def test_a_run_has_one_writer(fedsyn, tmp_path):
    with claimed(tmp_path / "results" / "ok"):
        code, _, err = fedsyn("run", "digits-fedavg", "--name", "ok")
    assert code == 2
    assert err == [f"error: {tmp_path}/results/ok is being written by another fedsyn: wait for it"]


def test_demo_compares_two_methods(fedsyn, tmp_path):
    code, out, err = fedsyn("demo", "--results-dir", "there")
    assert (code, err) == (0, [])
    assert [line.split()[:2] for line in out[-4:-2]] == [["fedavg", "0.7500"], ["hfmds", "0.7500"]]
    assert out[-2] == f"results in {tmp_path}/there"
    assert out[-1].startswith(f"report in {tmp_path}/there/report.html")
    assert "<title>" in (tmp_path / "there" / "report.html").read_text()
    folders = [path for path in (tmp_path / "there").iterdir() if path.is_dir()]
    names = sorted(path.name.split("-seed0-")[0] for path in folders)
    assert names == ["fedavg-digits", "hfmds-digits"]


@pytest.mark.parametrize(
    ("command", "some"),
    [
        ("methods", ["fedavg", "hfmds"]),
        ("datasets", ["digits", "cifar10"]),
        ("models", ["cnn", "vgg8"]),
    ],
)
def test_lists_have_a_line_each(fedsyn, command, some):
    code, out, err = fedsyn(command)
    names = [line.split("  ")[0] for line in out]
    assert (code, err) == (0, [])
    assert set(some) <= set(names)
    assert all(re.fullmatch(r"\S+ {2,}\S.*", line) for line in out)


def test_help_is_quick_and_needs_no_framework():
    code = "import sys; from fedsyn_flwr.cli import app; sys.argv = ['fedsyn', 'run', '--help']\n"
    code += "try: app.main()\nexcept SystemExit: print({'torch', 'flwr'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert lines[0] == "Usage: fedsyn run [OPTIONS] [CONF]"
    assert lines[-1] == "set()"


@pytest.fixture
def app(tmp_path):
    """The fake app, ready for `flwr run`."""
    return install(tmp_path / "app")


class Observed(Family):
    """Everything the tested command starts, whatever it does to its own family's mark."""

    KEY = "FEDSYN_TEST_FAMILY"


@contextlib.contextmanager
def hanging(app, tmp_path):
    """The command in a process of its own, its run under way; and all that it started."""
    family = Observed()
    command = [sys.executable, str(FAKE_APP / "fedsyn.py"), str(app), "run", "digits-fedavg"]
    command += ["--name", "hang", "--clients", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**ENV, **family.environment}
    with subprocess.Popen(command, cwd=tmp_path, env=env, **pipes) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "results" / "hang" / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process, family


@pytest.mark.sim
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_everything(app, tmp_path, number):
    folder = tmp_path / "results" / "hang"
    with hanging(app, tmp_path) as (process, family):
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == f"stopped by the user; results so far in {folder}\n"
    assert status(folder) == {"status": "stopped", "rounds": 1, "reason": "interrupted by the user"}
    assert family.alive() == []


@pytest.mark.sim
def test_kill_9_ends_everything_and_frees_the_run(app, tmp_path):
    folder = tmp_path / "results" / "hang"
    with hanging(app, tmp_path) as (process, family):
        homes = {word for p in family.alive() for word in re.findall(r"FLWR_HOME=(\S+)", p.words)}
        process.kill()
        process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while family.alive():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status(folder)["status"] == "running"  # nobody was left to say otherwise
    assert homes
    assert not any(Path(home).exists() for home in homes)
    assert RunFiles(folder).status() == {}
    with claimed(folder):  # the claim went with its process
        assert read_status(folder)["rounds"] == 1
