"""From the command line to a checked run."""

import re
from pathlib import Path

import pytest

from fedsyn_flwr import preflight
from fedsyn_flwr.config import APP_DIR
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.simulation import resolve, resources


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """An empty working directory, and nothing checked that needs data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSYN_RESULTS_DIR", raising=False)
    monkeypatch.setattr(preflight, "check", lambda config, num_clients: None)


@pytest.fixture
def machine(monkeypatch):
    """Eight cores, two GPUs."""
    monkeypatch.setattr(resources, "cpu_count", lambda: 8)
    monkeypatch.setattr(resources, "gpu_count", lambda: 2)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("seed=3", ("seed", 3)),
        ("learning-rate=1e-3", ("learning-rate", 0.001)),
        (" learning-rate = 1 ", ("learning-rate", 1)),
        ("channels-last=false", ("channels-last", False)),
        ("strategy=fedavg", ("strategy", "fedavg")),
        ("run-name=7", ("run-name", "7")),
        ("run-name='a=b'", ("run-name", "a=b")),
        ("data-dir=", ("data-dir", "")),
        ("seed=abc", ("seed", "abc")),
        ("seed=[1]", ("seed", "[1]")),
        ("seed=1\nmomentum = 2", ("seed", "1\nmomentum = 2")),
    ],
)
def test_parse_override(text, pair):
    key, value = resolve.parse_override(text)
    assert (key, value) == pair
    assert type(value) is type(pair[1])


@pytest.mark.parametrize("text", ["foo", "=3", ""])
def test_parse_override_refuses_what_is_not_a_pair(text):
    with pytest.raises(UserError, match=re.escape(f"-c {text!r}: must be key=value")):
        resolve.parse_override(text)


def test_find_conf_knows_bare_names():
    assert resolve.find_conf("digits-fedavg") == APP_DIR / "conf" / "digits-fedavg.toml"
    assert resolve.find_conf("mine/x.toml") == Path("mine/x.toml")


def test_find_conf_lists_the_names_there_are():
    with pytest.raises(UserError, match=r"'digits' is neither .* digits-fedavg, .*digits-hfmds"):
        resolve.find_conf("digits")


def test_merge_later_ones_win_and_paths_become_absolute(tmp_path):
    Path("my.toml").write_text('seed = 1\nmomentum = 0.5\ndata-dir = "d"\nbatch-size = 7\n')
    keys = resolve.merge("my.toml", ["momentum=0.25", "seed=2"], {"seed": 3, "run-name": None})
    assert keys["batch-size"] == 7
    assert keys["momentum"] == 0.25
    assert keys["seed"] == 3
    assert keys["run-name"] == ""
    assert keys["data-dir"] == str(tmp_path / "d")
    assert keys["results-dir"] == str(tmp_path / "results")
    assert keys["state-dir"] == ""


@pytest.mark.parametrize(
    ("override", "flag", "folder"),
    [([], None, "env"), (["results-dir=key"], None, "key"), (["results-dir=key"], "flag", "flag")],
)
def test_results_dir_flag_before_key_before_environment(
    tmp_path, monkeypatch, override, flag, folder
):
    monkeypatch.setenv("FEDSYN_RESULTS_DIR", "env")
    keys = resolve.merge("digits-fedavg", override, {"results-dir": flag})
    assert keys["results-dir"] == str(tmp_path / folder)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("arguments", "actors", "init_cpus"),
    [
        ((10, 1, 0.0), 8, 8),
        ((3, 1, 0.0), 3, 3),
        ((10, 3, 0.0), 2, 6),
        ((10, 1, 0.0, 4), 4, 4),
        ((10, 2, 0.0, 12), 10, 20),
        ((10, 1, 0.5), 4, 4),
        ((10, 1, 0.4), 4, 4),
        ((10, 1, 1.0), 2, 2),
        ((10, 1, 2.0), 1, 1),
    ],
)
def test_options_fit_the_machine(arguments, actors, init_cpus):
    options = resolve.Options.fit(*arguments)
    assert options.actors == actors
    assert options.federation() == {
        "num-supernodes": arguments[0],
        "client-resources-num-cpus": arguments[1],
        "client-resources-num-gpus": arguments[2],
        "init-args-num-cpus": init_cpus,
    }


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0.0), "--clients 0: must be at least 1"),
        ((5, 0, 0.0), "--cpus-per-client 0: must be at least 1"),
        ((5, 9, 0.0), "--cpus-per-client 9: this machine has 8 cores"),
        ((5, 1, 0.0, 0), "--actors 0: must be at least 1"),
        ((5, 1, 3.0), "--gpus-per-client 3: PyTorch sees 2 CUDA GPUs here"),
        ((5, 1, 1.5), "--gpus-per-client 1.5: must be a whole number, or a share below 1"),
        ((5, 1, -0.5), "--gpus-per-client -0.5: "),
    ],
)
def test_options_name_what_does_not_fit(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        resolve.Options.fit(*arguments)


@pytest.mark.parametrize(
    ("overrides", "size", "clients"),
    [
        (["num-clients=0"], {}, 10),
        (["num-clients=6"], {}, 6),
        (["num-clients=6"], {"clients": 4}, 4),
    ],
)
def test_number_of_clients_flag_before_key_before_default(overrides, size, clients):
    ready = resolve.prepare("digits-fedavg", overrides, **size)
    assert ready.options.clients == clients
    assert ready.run_config["num-clients"] == clients
    assert ready.config.federation.num_clients == clients


def test_a_run_gets_a_telling_name(tmp_path):
    ready = resolve.prepare("digits-fedavg", ["seed=5"])
    assert re.fullmatch(r"fedavg-digits-seed5-\d{8}-\d{6}", str(ready.run_config["run-name"]))
    assert ready.folder == tmp_path / "results" / str(ready.run_config["run-name"])
    assert not (tmp_path / "results").exists()


def test_a_finished_runs_folder_is_not_used_again(tmp_path):
    flags = {"run-name": "x", "results-dir": "r"}
    (tmp_path / "r" / "x").mkdir(parents=True)
    assert resolve.prepare("digits-fedavg", flags=flags).folder == tmp_path / "r" / "x"
    (tmp_path / "r" / "x" / "status.json").write_text("{}")
    with pytest.raises(UserError, match="r/x already holds a run: choose another --name"):
        resolve.prepare("digits-fedavg", flags=flags)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("overrides", "size", "line"),
    [
        (["device=cpu"], {"actors": 1}, "1 actor x 1 thread, device cpu"),
        (
            ["threads-per-client=0"],
            {"cpus_per_client": 4},
            "2 actors x 4 threads, device cuda (shared by all actors)",
        ),
        ([], {"gpus_per_client": 0.5}, "4 actors x 1 thread, device cuda (0.5 GPU each)"),
    ],
)
def test_headline_says_what_runs_where(tmp_path, overrides, size, line):
    ready = resolve.prepare("digits-fedavg", ["seed=5", *overrides], {"run-name": "x"}, **size)
    rounds = ready.config.federation.num_server_rounds
    assert ready.headline() == [
        f"fedavg on digits (dirichlet partition): 10 clients, {rounds} rounds, seed 5",
        line,
        f"results in {tmp_path / 'results' / 'x'}",
    ]
