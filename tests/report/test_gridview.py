"""What a grid shows while it runs, and how long it says that it needs."""

import io

import pytest
from rich.console import Console

from fedsyn_flwr.report import gridview
from fedsyn_flwr.report.estimate import Line, grid_seconds_left, human_seconds, seconds_left
from fedsyn_flwr.report.gridview import LineListener, LiveGrid, PlainGrid, for_terminal, window


def lines():
    """Two methods, two seeds; one run before this grid, one in it, one under way."""
    made = [Line(f"{m}-s{s}", ("c", m, ()), 10) for s in (0, 1) for m in ("fedavg", "hfmds")]
    made[0].state, made[0].pace, made[0].done = "finished", [2.0] * 10, 10
    made[1].state, made[1].pace, made[1].done = "completed", [5.0] * 10, 10
    made[1].seconds = 57.0
    return made


def test_a_waiting_runs_pace_is_that_of_runs_like_it():
    each = lines()
    assert seconds_left(each[0], each) == 0.0
    assert seconds_left(each[2], each) == 7.0 + 10 * 2.0  # 57 s less 50 s are spent on starting
    assert seconds_left(each[3], each) == 7.0 + 10 * 5.0
    assert grid_seconds_left(each) == 27.0 + 57.0


def test_a_running_runs_pace_is_its_own():
    each = lines()
    each[2].state, each[2].done, each[2].pace, each[2].seconds = "running", 4.5, [1.0, 3.0], 12.0
    assert seconds_left(each[2], each) == 5.5 * 2.0
    each[2].pace, each[2].done = [], 0.0
    assert seconds_left(each[2], each) == 10 * 2.0  # the start is over by now
    each[2].seconds = 3.0
    assert seconds_left(each[2], each) == 4.0 + 10 * 2.0


def test_nothing_is_known_before_the_first_round():
    each = [Line("a", ("c", "fedavg", ()), 10)]
    assert seconds_left(each[0], each) is None
    assert grid_seconds_left(each) is None


def test_a_method_never_seen_takes_the_mean_of_the_others():
    each = [*lines()[:2], Line("x", ("d", "moon", ()), 10)]
    each[1].seconds = 50.0
    assert seconds_left(each[2], each) == 10 * 3.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.4, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")],
)
def test_human_seconds(seconds, text):
    assert human_seconds(seconds) == text


def follow(view, line):
    """A run from its start to the second of ten rounds."""
    listener = LineListener(line, view)
    listener.start(10)
    listener.round({"round": 1, "seconds/round": 2.0, "server/test_accuracy": 0.5})
    listener.state({"status": "running", "rounds": 1, "round": 2, "phase": "evaluation"})


def test_plain_lines(monkeypatch):
    monkeypatch.setattr(gridview, "PROGRESS_SECONDS", 0.0)
    each, out = lines(), io.StringIO()
    with PlainGrid(each, out) as view:
        follow(view, each[2])
        each[2].state, each[2].reason, each[2].seconds = "failed", "why", 3.0
        view.changed(each[2])
    assert out.getvalue().splitlines() == [
        "1 of 4 runs were finished before",
        "[3/4] fedavg-s1: starts",
        "[3/4] fedavg-s1: round 2/10: evaluation, accuracy 0.5000, 1 min 15 s left for all",
        "[3/4] fedavg-s1: failed after 1 rounds: why, accuracy 0.5000, 3.0 s; 57 s left for all",
    ]


def test_plain_lines_are_few(monkeypatch):
    each, out = lines(), io.StringIO()
    with PlainGrid(each, out) as view:
        follow(view, each[2])
        for _ in range(100):
            view.changed(each[2])
    assert len(out.getvalue().splitlines()) == 2


def test_the_live_table():
    each, console = lines(), Console(width=90, height=30, file=io.StringIO(), record=True)
    view = LiveGrid(each, console)
    follow(view, each[2])
    console.print(view.drawn())
    text = [" ".join(line.split()) for line in console.export_text().splitlines() if line.strip()]
    assert text[0] == "run state round accuracy seconds left"
    assert text[2:] == [
        "fedavg-s0 finished 10/10 -",
        "hfmds-s0 completed 10/10 - 57",
        "fedavg-s1 running 1/10 0.5000 0 18 s",
        "hfmds-s1 waiting - 57 s",
        "2 of 4 runs ended, 1 min 15 s left round 2/10: evaluation",
    ]


def test_the_live_table_is_taken_away():
    console = Console(width=90, height=30, file=io.StringIO(), force_terminal=True)
    with LiveGrid(lines(), console):
        pass
    assert console.file.getvalue().endswith("\x1b[2K")


def test_a_long_grid_shows_the_runs_around_the_present_one():
    each = [Line(str(i), (), 1) for i in range(20)]
    assert window(each, each[10], 30) == each
    assert [line.name for line in window(each, each[10], 6)] == ["8", "9", "10", "11", "12", "13"]
    assert window(each, each[0], 6) == each[:6]
    assert window(each, each[19], 6) == each[14:]


def test_a_pipe_gets_plain_lines():
    assert isinstance(for_terminal(lines()), PlainGrid)
