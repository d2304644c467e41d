"""The last lines of a run, to the letter."""

from pathlib import Path

from fedsyn_flwr.report.run_result import RunResult
from fedsyn_flwr.report.summary import comparison, failure_lines, final_lines

ROWS = [
    {
        "round": 1,
        "server/test_accuracy": 0.75,
        "bytes/down": 1_000_000,
        "bytes/up": 500_000,
        "seconds/round": 1.5,
    },
    {"round": 2, "bytes/down": 1_000_000, "bytes/up": 500_000, "seconds/round": 1.5},
    {
        "round": 3,
        "server/test_accuracy": 0.5,
        "bytes/down": 1_000_000,
        "bytes/up": 500_000,
        "seconds/round": 1.5,
    },
]


def result(folder=Path("/r/x"), status="completed", reason="", rows=ROWS):
    return RunResult(folder, status, len(rows), reason, 12.34, rows)


def test_final_lines():
    assert final_lines(result()) == [
        "completed: final accuracy 0.5000, best 0.7500 (round 1)",
        "3 rounds in 4.5 s, 3.00 MB down, 1.50 MB up; 12.3 s in all",
        "results in /r/x",
    ]


def test_final_lines_without_any_evaluation():
    assert final_lines(result(rows=ROWS[1:2]))[0] == "completed: no round was evaluated"


def test_failure_lines_name_reason_other_errors_and_log(tmp_path):
    (tmp_path / "flwr.log").write_text("ValueError: first\nKeyError: 'why'\n")
    assert failure_lines(result(tmp_path, "failed", "KeyError: 'why'")) == [
        "failed after 3 rounds: KeyError: 'why'",
        "  also logged: ValueError: first",
        f"log in {tmp_path / 'flwr.log'}",
    ]


def test_comparison():
    assert comparison({"fedavg": result(), "hfmds": result(rows=ROWS[:1])}) == [
        "method     final accuracy    best   seconds        down          up",
        "fedavg             0.5000  0.7500      12.3     3.00 MB     1.50 MB",
        "hfmds              0.7500  0.7500      12.3     1.00 MB      500 kB",
    ]
