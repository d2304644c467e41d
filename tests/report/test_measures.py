"""What a run achieved, by hand-counted rounds."""

import pytest

from fedsyn_flwr.report import measures

ROWS = [
    {"round": 1, "bytes/down": 10, "bytes/up": 1, "seconds/round": 0.5, "privacy/psnr_mean": 8.0},
    {"round": 2, "server/test_accuracy": 0.9, "bytes/down": 10, "bytes/up": 2, "seconds/round": 1},
    {"round": 3, "server/test_accuracy": None, "bytes/down": 10, "privacy/psnr_mean": 9.0},
    {"round": 4, "server/test_accuracy": 0.8, "seconds/round": 0.25, "dp/epsilon": None},
]


def test_accuracy():
    assert measures.accuracies(ROWS) == [(2, 0.9), (4, 0.8)]
    assert (measures.final(ROWS), measures.best(ROWS)) == (0.8, 0.9)
    assert (measures.final(ROWS[:1]), measures.best([])) == (None, None)


def test_recent_is_the_mean_of_the_last_five():
    rows = [
        {"round": i, "server/test_accuracy": i / 10, "refined/test_accuracy": i} for i in range(9)
    ]
    rows += [{"round": 9, "server/test_accuracy": None}]
    assert measures.recent(rows) == pytest.approx(0.6)
    assert measures.recent(rows[:2]) == pytest.approx(0.05)
    assert measures.recent([]) is None
    assert measures.measured(rows) == {"refined/test_accuracy": 6.0}


def test_rounds_to_a_target():
    assert measures.rounds_to(ROWS, 0.8) == 2
    assert measures.rounds_to(ROWS, 0.9) == 2
    assert measures.rounds_to(ROWS, 0.91) is None


def test_costs():
    assert measures.traffic(ROWS) == (30, 3)
    assert measures.seconds(ROWS) == 1.75
    assert measures.running_totals(ROWS, "bytes/down", "bytes/up") == [11, 23, 33, 33]


def test_the_last_value_counts_of_what_only_some_methods_measure():
    more = {"privacy/ssim": 0.5, "gan/kept": 3, "server/test_loss": 1.0, "gan/on": True}
    assert measures.measured([*ROWS, more]) == {
        "privacy/psnr_mean": 9.0,
        "privacy/ssim": 0.5,
        "gan/kept": 3,
    }
