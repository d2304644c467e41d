"""What appears on the screen during a run."""

import io

from fedsyn_flwr.report.console import Live, Plain, for_terminal
from fedsyn_flwr.report.progress import HEADER

ROW = {"round": 1, "server/test_accuracy": 0.5, "bytes/down": 1000, "bytes/up": 10}
LINE = "   1/2    0.5000          -           -         -    1.00 kB       10 B"


def test_plain_writes_a_line_per_round_and_nothing_else():
    out = io.StringIO()
    shown = Plain(out)
    shown.start(2)
    shown.state({"phase": "training", "round": 1})
    shown.round(ROW)
    shown.stop()
    assert out.getvalue() == f"{HEADER}\n{LINE}\n"


def test_live_leaves_the_same_lines_behind(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    shown = Live()
    shown.start(2)
    shown.state({"status": "running", "phase": "training", "round": 1, "rounds": 0})
    shown.round(ROW)
    shown.stop()
    shown.stop()
    lines = capsys.readouterr().out.splitlines()
    assert HEADER in lines
    assert LINE in lines


def test_a_pipe_gets_plain_lines():
    assert isinstance(for_terminal(), Plain)
