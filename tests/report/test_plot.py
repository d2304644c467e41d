"""Curves over seeds, with hand-computed numbers, and the pictures of them."""

import re
from pathlib import Path

import numpy as np
import pytest
from finished import fedsyn, rows, write

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.report.curves import (
    Curve,
    Run,
    curve,
    curves,
    find,
    grouped,
    labels,
    points,
    title,
)
from fedsyn_flwr.report.figure import axis, caption, draw

ROWS = [
    {"round": 1, "server/test_accuracy": 0.2, "seconds/round": 2.0, "bytes/down": 3, "bytes/up": 1},
    {"round": 2, "seconds/round": 2.0, "bytes/down": 3, "bytes/up": 1},
    {"round": 3, "server/test_accuracy": 0.6, "seconds/round": 4.0, "bytes/down": 3, "bytes/up": 1},
]


def run(seed=0, accuracies=(0.1, 0.2), **keys):
    config = {"strategy": "fedavg", "seed": seed, "run-name": f"r{seed}", **keys}
    return Run(Path(f"/r{seed}"), config, rows(*accuracies))


@pytest.mark.parametrize(
    ("x", "along"), [("rounds", [1, 3]), ("seconds", [2.0, 8.0]), ("bytes", [4, 12])]
)
def test_points_count_rounds_without_an_evaluation_too(x, along):
    found = points(ROWS, x)
    assert found[0].tolist() == along
    assert found[1].tolist() == [0.2, 0.6]


def test_rounds_are_compared_where_all_runs_were_evaluated():
    made = curve("a", [rows(0.1, 0.2, 0.3), rows(0.3, 0.6)], "rounds")
    assert made.x.tolist() == [1, 2]
    assert made.mean.tolist() == pytest.approx([0.2, 0.4])
    assert made.low.tolist() == [0.1, 0.2]
    assert made.high.tolist() == [0.3, 0.6]
    assert made.runs == 2


def test_seconds_are_interpolated_over_the_range_all_runs_cover():
    made = curve("a", [rows(0.0, 1.0, seconds=1.0), rows(0.0, 1.0, seconds=1.5)], "seconds")
    assert (made.x[0], made.x[-1]) == (1.5, 2.0)
    assert (made.low[0], made.high[0]) == (0.0, 0.5)
    assert (made.low[-1], made.high[-1]) == (pytest.approx(1 / 3), 1.0)
    assert np.all(np.diff(made.mean) > 0)


def test_runs_that_cover_no_common_range_do_not_crash():
    made = curve("a", [rows(0.1, 0.2, seconds=1.0), rows(0.3, 0.4, seconds=100.0)], "seconds")
    assert made.x[0] == made.x[-1] == 100.0


def test_groups_are_runs_that_differ_in_the_seed_only():
    runs = [run(0), run(0, strategy="hfmds"), run(1), run(1, momentum=0.5)]
    assert [len(group) for group in grouped(runs)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ([{}], ["fedavg"]),
        ([{}, {"strategy": "hfmds"}], ["fedavg", "hfmds"]),
        ([{"momentum": 0.0}, {"momentum": 0.9}], ["momentum=0", "momentum=0.9"]),
        (
            [{"seed": 1, "norm": "gn"}, {"strategy": "hfmds", "norm": "bn"}],
            ["fedavg, norm=gn", "hfmds, norm=bn"],
        ),
        (
            [
                {"hfmds-mu": 0.0},
                {"strategy": "hfmds", "hfmds-mu": 0.5},
                {"strategy": "hfmds", "hfmds-mu": 1.0},
            ],
            ["fedavg", "hfmds, hfmds-mu=0.5", "hfmds, hfmds-mu=1"],
        ),
        (
            [{"server-lr": 0.0}, {"strategy": "fedadam", "server-lr": 0.01}],
            ["fedavg", "fedadam"],
        ),
        (
            [{"server-lr": lr} for lr in (0.1, 1.0)] + [{"strategy": "fedadam", "server-lr": 1.0}],
            ["fedavg, server-lr=0.1", "fedavg, server-lr=1", "fedadam, server-lr=1"],
        ),
    ],
)
def test_labels_say_only_what_differs_and_matters(configs, names):
    assert labels(grouped([run(**config) for config in configs])) == names


def test_keys_of_other_methods_make_no_difference():
    assert len(grouped([run(0, **{"hfmds-mu": 0.0}), run(1, **{"hfmds-mu": 0.5})])) == 1


def test_title_is_what_all_have_in_common():
    keys = {"dataset": "digits", "partition": "dirichlet", "dirichlet-alpha": 0.1, "model": "cnn"}
    one, other = run(**keys, **{"num-clients": 10}), run(**keys, **{"num-clients": 20})
    assert title([[one]]) == "digits, Dirichlet(0.1) partition, cnn, 10 clients"
    assert title([[one], [other]]) == "digits, Dirichlet(0.1) partition, cnn"
    classes = run(**{**keys, "partition": "classes", "classes-per-client": 2})
    assert title([[classes]]) == "digits, 2 classes per client, cnn"
    assert title([[one], [classes]]) == "digits, cnn, 10 clients"


def test_find_looks_one_level_down_and_leaves_out_the_unfinished(tmp_path):
    done = write(tmp_path / "a" / "x", seed=0)
    broken = write(tmp_path / "a" / "y", "failed", seed=1)
    alone = write(tmp_path / "z", seed=2)
    found = find([str(tmp_path / "a"), str(alone), str(done)])
    assert [[run.folder for run in group] for group in found.groups] == [[done, alone]]
    assert found.left_out == [broken]
    assert find([str(broken)]).groups[0][0].folder == broken


def test_runs_of_a_folder_come_in_the_order_of_the_methods(tmp_path):
    for name, method in (("a", "hfmds"), ("b", "fedprox"), ("c", "fedavg"), ("d", "unknown")):
        write(tmp_path / "r" / name, strategy=method)
    alone = write(tmp_path / "z", strategy="moon")
    found = find([str(alone), str(tmp_path / "r"), str(alone)])
    assert [group[0].folder.name for group in found.groups] == ["z", "c", "b", "a", "d"]


def test_find_says_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        find([str(tmp_path / "none")])
    with pytest.raises(UserError, match=r"holds no run: none of its folders has a config\.json"):
        find([str(tmp_path)])
    write(tmp_path / "x", accuracies=())
    with pytest.raises(UserError, match="no evaluated round in"):
        find([str(tmp_path)])


@pytest.mark.parametrize(
    ("x", "largest", "expected"),
    [
        ("rounds", 100, (1, "communication round")),
        ("seconds", 100, (1, "time spent in rounds (s)")),
        ("seconds", 4000, (60, "time spent in rounds (min)")),
        ("bytes", 5e3, (1e3, "communication, down and up, all clients (kB)")),
        ("bytes", 5e9, (1e9, "communication, down and up, all clients (GB)")),
    ],
)
def test_axis_units(x, largest, expected):
    assert axis(x, largest) == expected


def test_caption_says_what_the_band_is():
    assert caption({1}) == "one seed"
    assert caption({3}) == "mean and range (min to max)\nover 3 seeds"
    assert caption({1, 3}) == "mean and range (min to max)\nover the seeds"


@pytest.mark.parametrize("count", [1, 15])
def test_pictures_name_axes_units_and_all_groups(tmp_path, count):
    along = np.array([1e6, 2e6])
    made = [
        Curve(f"group-{i}", along, along / 9e6, along / 1e7, along / 8e6, 2) for i in range(count)
    ]
    png, svg = draw(made, "bytes", "digits", tmp_path / "new" / "accuracy-bytes")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = "\n".join(re.findall(r"<!-- (.*?) -->", svg.read_text(), re.S))
    for word in ("digits", "(MB)", "test accuracy", "over 2 seeds", f"group-{count - 1}"):
        assert word in text
    assert [path.name for path in tmp_path.rglob("*.part")] == []


def test_a_single_round_can_be_drawn(tmp_path):
    png, _ = draw(curves([[run(accuracies=[0.5])]], "seconds"), "seconds", "", tmp_path / "x")
    assert png.stat().st_size > 5000


def test_the_command_writes_beside_the_results_or_elsewhere(tmp_path, monkeypatch, capsys):
    write(tmp_path / "r" / "a", seed=0)
    write(tmp_path / "r" / "b", "running", seed=1)
    assert fedsyn(monkeypatch, "plot", str(tmp_path / "r"), "--x", "rounds") == 0
    out, err = capsys.readouterr()
    names = [str(tmp_path / "r" / f"accuracy-rounds.{kind}") for kind in ("png", "svg")]
    assert out.splitlines() == names
    assert err == f"left out: {tmp_path}/r/b (not completed, or never evaluated)\n"
    monkeypatch.chdir(tmp_path)
    assert fedsyn(monkeypatch, "plot", "r/b", "--output", "p") == 0
    out, err = capsys.readouterr()
    assert len(list((tmp_path / "p").iterdir())) == 6
    assert err == f"not completed, taken as far as it got: {tmp_path}/r/b\n"


def test_the_commands_mistakes_are_one_line(tmp_path, monkeypatch, capsys):
    assert fedsyn(monkeypatch, "plot", str(tmp_path), "--x", "rounds,time") == 2
    assert capsys.readouterr().err == "error: --x 'time': allowed are rounds, seconds, bytes\n"
