"""Grids: `fedsyn compare` as a user sees it, over a stand-in for Flower."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from fake_app.command import FakeSuperLink, command
from fake_app.writing import write_config, write_round, write_status

from fedsyn_flwr.cli import compare
from fedsyn_flwr.config import APP_DIR
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.registry import METHODS
from fedsyn_flwr.simulation import grid, grid_arguments


@pytest.fixture
def fedsyn(tmp_path, monkeypatch, capsys):
    """Call the command; there are confs whose runs behave as their names say."""
    call = command(tmp_path, monkeypatch, capsys)
    for name in ("ok", "fail", "damaged", "ctrlc"):
        Path(f"{name}.toml").write_text('strategy = "fedavg"\nnum-server-rounds = 2\n')
    return call


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def test_a_grid_from_nothing_and_the_same_again(fedsyn, results):
    grid = ["compare", "ok.toml", "--methods", "fedavg,hfmds", "--seeds", "0,1"]
    grid += ["--set", "learning-rate=0.1,1", "--target", "0.7"]
    code, out, err = fedsyn(*grid)
    assert (code, err) == (0, [])
    assert FakeSuperLink.opened == 1
    assert FakeSuperLink.submitted == [
        f"ok-{method}-learning-rate={rate}-s{seed}"
        for seed in (0, 1)
        for method in ("fedavg", "hfmds")
        for rate in ("0.1", "1")
    ]
    assert out[0] == f"8 runs, results in {results}"
    assert out[1] == "[1/8] ok-fedavg-learning-rate=0.1-s0: starts"
    assert out[2].startswith(
        "[1/8] ok-fedavg-learning-rate=0.1-s0: completed after 2 rounds, accuracy 0.7500, "
    )
    assert out[-3:] == [str(results / f"summary.{kind}") for kind in ("md", "csv", "json")]
    table = (results / "summary.md").read_text()
    assert "`fedsyn compare ok.toml --methods fedavg,hfmds --seeds 0,1 --set" in table
    assert "- versions: flwr 1.42.0" in table
    with (results / "summary.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["run"] for line in lines] == FakeSuperLink.submitted
    assert {line["learning-rate"] for line in lines} == {"0.1", "1"}

    FakeSuperLink.submitted.clear()
    code, out, err = fedsyn(*grid)
    assert (code, err) == (0, [])
    assert out[1] == "8 of 8 runs were finished before"
    assert (FakeSuperLink.opened, FakeSuperLink.submitted) == (1, [])


def test_a_failing_run_does_not_stop_the_others(fedsyn, results):
    code, out, _ = fedsyn("compare", "ok.toml", "fail.toml", "--seeds", "3,4")
    assert code == 1
    names = ["ok-fedavg-s3", "fail-fedavg-s3", "ok-fedavg-s4", "fail-fedavg-s4"]
    assert FakeSuperLink.submitted == names
    assert FakeSuperLink.opened == 2  # the failure may have taken Ray with it; none after the last
    reason = "failed after 1 rounds: round 2: 1 of 10 clients succeeded, 5 are needed"
    assert f"- fail-fedavg-s3: {reason}" in out
    summary = json.loads((results / "summary.json").read_text())
    assert [(row["conf"], row["n"]) for row in summary["groups"]] == [("ok", 2), ("fail", 0)]
    assert [run["status"] for run in summary["runs"]] == ["completed", "failed"] * 2


def test_ctrl_c_keeps_what_there_is_and_the_same_command_goes_on(fedsyn, results):
    FakeSuperLink.interrupts.add("ctrlc")
    grid = ["compare", "ok.toml", "ctrlc.toml", "--seeds", "0,1"]
    code, out, err = fedsyn(*grid)
    assert code == 130
    assert err == ["stopped by the user: the same command goes on"]
    assert "- ctrlc-fedavg-s0: stopped after 0 rounds: interrupted by the user" in out
    assert "- ok-fedavg-s1: waiting" in out
    assert (results / "summary.md").exists()
    FakeSuperLink.interrupts.clear()
    FakeSuperLink.submitted.clear()
    code, out, err = fedsyn(*grid)
    assert (code, err) == (0, [])
    assert FakeSuperLink.submitted == ["ctrlc-fedavg-s0", "ok-fedavg-s1", "ctrlc-fedavg-s1"]


def unfinished(folder, fedsyn, results):
    """A run killed after its first round."""
    fedsyn("compare", f"{folder.name.split('-')[0]}.toml")
    (folder / "metrics.jsonl").unlink()
    write_round(folder, 1)
    write_status(folder, "running", 1)
    FakeSuperLink.submitted.clear()


def test_an_unfinished_run_is_resumed(fedsyn, results):
    folder = results / "ok-fedavg-s0"
    unfinished(folder, fedsyn, results)
    assert fedsyn("compare", "ok.toml", "-c", "checkpoint-every=3")[0] == 0
    config = json.loads((folder / "config.json").read_text())["config"]
    assert config["resume"] is True
    assert config["state-dir"] == str(folder / "state")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_what_cannot_be_resumed_is_listed_with_the_new_reason(fedsyn, results):
    folder = results / "damaged-fedavg-s0"
    write_round(folder, 1)
    write_status(folder, "stopped", 1, "interrupted by the user")
    code, out, _ = fedsyn("compare", "damaged.toml")
    assert code == 1
    assert "- damaged-fedavg-s0: failed after 1 rounds: checkpoint c is damaged: remove" in out


def test_a_run_of_another_configuration_is_left_alone(fedsyn, results):
    assert fedsyn("compare", "ok.toml", "--seeds", "0")[0] == 0
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    code, out, err = fedsyn("compare", "ok.toml", "-c", "momentum=0.5", "--seeds", "1,0")
    folder = results / "ok-fedavg-s0"
    assert (code, out) == (2, [])
    assert err == [
        f"error: {folder} holds a run with other settings: momentum = 0.9 there, 0.5 here; "
        "choose another --results-dir or remove it"
    ]
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_a_key_unknown_to_the_finished_runs_version_had_its_default(fedsyn, results):
    folder = results / "ok-fedavg-s0"
    write_round(folder, 1)
    write_status(folder, "completed", 1)
    write_config(folder, {"strategy": "fedavg", "num-server-rounds": 2, "num-clients": 10})
    code, out, _ = fedsyn("compare", "ok.toml")
    assert (code, out[1]) == (0, "1 of 1 runs were finished before")


def test_a_key_of_one_methods_runs_only(fedsyn, results):
    wanted = ["ok.toml", "--methods", "fedavg,scaffold", "-c", "learning-rate=0.2"]
    code, _, err = fedsyn("compare", *wanted, "-c", "scaffold:momentum=0")
    assert (code, err) == (0, [])
    configs = [
        json.loads((results / f"ok-{method}-s0" / "config.json").read_text())["config"]
        for method in ("fedavg", "scaffold")
    ]
    fedavg, scaffold = configs
    assert (fedavg["momentum"], scaffold["momentum"]) == (0.9, 0)
    assert fedavg["learning-rate"] == scaffold["learning-rate"] == 0.2


def test_a_method_that_lacks_a_key_is_run_once_and_says_so(fedsyn, results):
    wanted = ["ok.toml", "--methods", "fedavg,fedprox", "--set", "fedprox-mu=0.1,1"]
    code, out, err = fedsyn("compare", *wanted, "--set", "learning-rate=0.1,0.2")
    assert (code, err) == (0, [])
    assert "note: fedavg has no fedprox-mu: run once" in out
    runs = sorted(path.parent.name for path in results.glob("*/status.json"))
    assert len(runs) == 6
    assert [name for name in runs if "fedavg" in name] == [
        "ok-fedavg-learning-rate=0.1-s0",
        "ok-fedavg-learning-rate=0.2-s0",
    ]
    rows = list(csv.DictReader((results / "summary.csv").open()))
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fedavg,best"], "strategy = 'best': allowed are"),
        (["--seeds", "0,x"], "--seeds '0,x': must be whole numbers, e.g. 0,1,2"),
        (["--seeds", "0,-1"], "seed = -1: must be greater than or equal to 0"),
        (["--set", "momentum"], "--set 'momentum': must be key=a,b,…"),
        (["--set", "momentum=0.1,"], "--set 'momentum=0.1,': must be key=a,b,…"),
        (["--set", "momentum=0.1,2"], "momentum = 2: must be less than 1"),
        (["--set", "momentun=0.1"], "unknown key 'momentun': did you mean momentum?"),
        (["--set", "seed=1,2"], "seed cannot be set for a grid: use --seeds"),
        (["-c", "strategy=fedavg"], "strategy cannot be set for a grid: use --methods"),
        (["--set", "momentum=0", "--set", "momentum=1"], "--set momentum is given twice"),
        (["--set", "momentum=0", "-c", "momentum=1"], "momentum is given by --set and by -c"),
        (
            ["--set", "momentum=0", "-c", "fedavg:momentum=1"],
            "momentum is given by --set and by -c",
        ),
        (["-c", "scafold:momentum=0"], "-c scafold:momentum=0: no run has strategy scafold, only"),
        (["-c", "fedavg:momentun=0"], "unknown key 'momentun': did you mean momentum?"),
        (["--target", "90"], "--target 90: must be above 0 and at most 1"),
        (["there/ok.toml"], "conf file there/ok.toml does not exist"),
        (["ok.toml"], "two runs would be called ok-fedavg-s0: give the confs other names"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(fedsyn, results, arguments, message):
    code, out, err = fedsyn("compare", "ok.toml", *arguments)
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"error: {message}")
    assert FakeSuperLink.opened == 0
    assert not results.exists()


def test_all_is_every_method_there_is():
    assert grid_arguments.names("all") == list(METHODS)
    assert grid_arguments.names("hfmds, fedavg,hfmds") == ["hfmds", "fedavg"]
    assert grid_arguments.names(None) == []


def test_names_are_made_of_letters_a_folder_may_have():
    setting = (("device", "cuda:0"), ("channels-last", True), ("momentum", 0.10))
    name = grid.run_name("my conf", "fedavg", setting, 7)
    assert name == "my_conf-fedavg-device=cuda_0-channels-last=true-momentum=0.1-s7"


def test_value_lists_are_parsed_as_single_values_are():
    lists = grid_arguments.value_lists(["momentum=0.5,0.9,0.5", "norm=gn,bn", "augment=none"])
    assert lists == {"momentum": [0.5, 0.9], "norm": ["gn", "bn"], "augment": ["none"]}


def test_two_confs_with_two_results_folders_are_refused(fedsyn, tmp_path):
    Path("other.toml").write_text('strategy = "fedavg"\nresults-dir = "elsewhere"\n')
    wanted = grid.Wanted(["ok.toml", "other.toml"], [], [0], {}, [], None, {})
    with pytest.raises(UserError, match="the confs name different results-dirs"):
        grid.prepare(wanted)
    wanted = grid.Wanted(["ok.toml", "other.toml"], [], [0], {}, [], "r", {})
    assert {cell.plan.folder.parent for cell in grid.prepare(wanted)} == {tmp_path / "r"}


GRIDS = [
    line.removeprefix("#").strip()
    for path in sorted((APP_DIR / "conf").glob("*.toml"))
    for line in path.read_text().splitlines()
    if line.startswith("#   fedsyn compare ")
]


@pytest.mark.parametrize("line", GRIDS)
def test_every_grid_that_a_conf_names_can_be_run(fedsyn, monkeypatch, line):
    grids = []
    monkeypatch.setattr(compare, "_run", lambda cells, target: grids.append(cells) or 0)
    assert fedsyn(*shlex.split(line)[1:])[::2] == (0, [])
    conf = shlex.split(line)[2]
    assert {cell.conf for cell in grids[0]} == {conf}
    assert len(grids[0]) == len({cell.plan.folder for cell in grids[0]}) >= 6


def test_the_ablations_of_the_paper_are_among_them():
    words = [word for line in GRIDS for word in shlex.split(line)]
    keys = {word.split("=")[0] for word in words if "=" in word and ":" not in word}
    assert keys == {
        *("num-clients", "local-epochs", "hfmds-mu"),
        *("synthesis-loss", "synthesis-tv", "synthesis-l2"),
    }
