"""Progress lines, to the letter, and reading of half-written files."""

import json
import os

import pytest

from fedsyn_flwr.report.progress import (
    HEADER,
    RunFiles,
    human_bytes,
    phase_text,
    round_line,
    rounds_done,
)

ROW = {
    "round": 3,
    "server/test_accuracy": 0.91237,
    "server/test_loss": 0.25,
    "clients/train_loss": 1.0,
    "seconds/round": 2.345,
    "bytes/down": 1_500_000,
    "bytes/up": 750,
    "clients/failed": 0,
}
RUNNING = {"status": "running", "rounds": 1, "round": 2, "total": 9}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (1_500_000, "1.50 MB"),
        (2.5e15, "2500 TB"),
    ],
)
def test_human_bytes(count, text):
    assert human_bytes(count) == text


def test_round_line_stands_below_its_header():
    line = round_line(ROW, 20)
    assert HEADER == " round  accuracy  test loss  train loss   seconds       down         up"
    assert line == "  3/20    0.9124     0.2500      1.0000       2.3    1.50 MB      750 B"
    assert len(line) == len(HEADER)


def test_round_line_without_evaluation_and_with_remarks():
    row = {**ROW, "server/test_loss": None, "clients/failed": 2, "seconds/synthesis": 4.06}
    del row["server/test_accuracy"]
    assert round_line(row, 20) == (
        "  3/20         -          -      1.0000       2.3    1.50 MB      750 B"
        "  synthesis 4.1 s  2 clients failed"
    )


def test_one_failed_client_is_singular():
    assert round_line({**ROW, "clients/failed": 1}, 20).endswith("  1 client failed")


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({}, "starting the simulation"),
        ({"status": "running", "phase": "start"}, "starting the server"),
        ({**RUNNING, "phase": "training", "done": 3}, "round 2/20: training, 3 of 9 clients"),
        ({**RUNNING, "round": 0, "phase": "waiting for clients"}, "waiting for clients, 0 of 9"),
        ({**RUNNING, "phase": "evaluation", "total": 1}, "round 2/20: evaluation"),
        ({"status": "completed", "rounds": 20}, "closing down"),
    ],
)
def test_phase_text(status, text):
    assert phase_text(status, 20) == text


def test_rounds_done_counts_replies_of_training_only():
    status = {"rounds": 4, "phase": "training", "done": 5, "total": 10}
    assert rounds_done(status) == 4.5
    assert rounds_done({**status, "phase": "synthesis"}) == 4.0
    assert rounds_done({}) == 0.0


def test_new_rows_leaves_a_half_written_line_for_later(tmp_path):
    files = RunFiles(tmp_path)
    assert files.new_rows() == []
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"round": 1}\n{"rou')
    assert files.new_rows() == [{"round": 1}]
    assert files.new_rows() == []
    log.write_text('{"round": 1}\n{"round": 2}\n')
    assert files.new_rows() == [{"round": 2}]
    assert files.rows == [{"round": 1}, {"round": 2}]


def test_rows_are_read_anew_when_the_server_drops_some(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"round": 1}\n{"round": 2, "a": 1}\n')
    (tmp_path / "status.json").write_text('{"status": "running", "rounds": 2}')
    files = RunFiles(tmp_path)
    assert files.new_rows() == []
    log.unlink()
    log.write_text('{"round": 1}\n')
    (tmp_path / "status.json").write_text('{"status": "running", "rounds": 1}')
    os.utime(tmp_path / "status.json", ns=(1, 1))
    assert files.new_rows() == []
    assert files.rows == [{"round": 1}]
    log.write_text('{"round": 1}\n{"round": 2, "a": 5}\n')
    assert files.new_rows() == [{"round": 2, "a": 5}]
    assert files.rows == [{"round": 1}, {"round": 2, "a": 5}]


def test_an_earlier_attempts_words_count_for_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    (tmp_path / "status.json").write_text('{"status": "completed", "rounds": 1}')
    files = RunFiles(tmp_path)
    assert (files.status(), files.new_rows(), files.rows) == ({}, [], [])
    (tmp_path / "status.json").write_text('{"status": "running", "rounds": 1, "phase": "start"}')
    assert files.status()["phase"] == "start"


@pytest.mark.parametrize(
    ("told", "left"), [("running", "failed"), ("failed", "failed"), ("completed", "completed")]
)
def test_end_after_an_earlier_attempt_overwrites_only_a_lie(tmp_path, told, left):
    (tmp_path / "status.json").write_text(json.dumps({"status": told, "rounds": 7, "reason": "x"}))
    RunFiles(tmp_path).end("failed", "why")
    written = json.loads((tmp_path / "status.json").read_text())
    assert written == {"status": left, "rounds": 7, "reason": "why" if told == "running" else "x"}


@pytest.mark.parametrize("text", ["", '{"status": "run', None])
def test_status_is_empty_while_unreadable(tmp_path, text):
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    assert RunFiles(tmp_path).status() == {}


def test_end_keeps_the_rounds_and_adds_the_reason(tmp_path):
    (tmp_path / "status.json").write_text('{"status": "running", "rounds": 7, "phase": "training"}')
    RunFiles(tmp_path).end("failed", "why")
    written = json.loads((tmp_path / "status.json").read_text())
    assert written == {"status": "failed", "rounds": 7, "reason": "why"}


def test_end_respects_the_servers_last_word(tmp_path):
    text = '{"status": "completed", "rounds": 7, "reason": ""}'
    (tmp_path / "status.json").write_text(text)
    RunFiles(tmp_path).end("stopped", "why")
    assert (tmp_path / "status.json").read_text() == text


def test_end_makes_no_folder(tmp_path):
    RunFiles(tmp_path / "never").end("stopped", "why")
    assert not (tmp_path / "never").exists()
