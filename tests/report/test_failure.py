"""The reason of a failure, found in logs as Flower 1.42 writes them."""

from fedsyn_flwr.report.failure import error_lines, read_errors

CRASH = """\
\x1b[92mINFO \x1b[0m:      Starting Flower Simulation
\x1b[91mERROR \x1b[0m:     Simulation raised an exception
Traceback (most recent call last):
  File "server.py", line 21, in main
    raise RuntimeError("no such thing")
RuntimeError: no such thing
\x1b[91mERROR \x1b[0m:     Exit Code: 700
"""

REFUSED = """\
Using SuperLink: fedsyn (127.0.0.1:45191)
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Pattern in "fab-exclude" did not match any files: "tests/**". Correct the    │
│ pattern or remove it.                                                        │
╰──────────────────────────────────────────────────────────────────────────────╯
"""


def test_the_exception_counts_not_flowers_phrases():
    assert error_lines(CRASH) == ["RuntimeError: no such thing"]


def test_a_framed_message_becomes_one_line():
    assert error_lines(REFUSED) == [
        'Pattern in "fab-exclude" did not match any files: "tests/**". '
        "Correct the pattern or remove it."
    ]


def test_a_users_mistake_is_shown_without_its_class():
    assert error_lines("fedsyn_flwr.errors.UserError: seed = -1: too small") == [
        "seed = -1: too small"
    ]


def test_what_the_server_logs_is_shown_without_its_word_for_it():
    assert error_lines("ERROR :     error: checkpoint c is damaged") == ["checkpoint c is damaged"]


def test_only_the_log_of_this_attempt_is_read(tmp_path):
    log = tmp_path / "flwr.log"
    log.write_text("ValueError: old\n")
    start = log.stat().st_size
    log.write_text("ValueError: old\nValueError: new\n")
    assert read_errors(log, start) == ["ValueError: new"]


def test_repeated_errors_are_given_once_and_the_last_ones_kept():
    log = "".join(f"ValueError: {n}\n" for n in (1, 2, 3, 4, 2))
    assert error_lines(log, limit=3) == ["ValueError: 3", "ValueError: 4", "ValueError: 2"]


def test_nothing_is_found_in_an_innocent_log(tmp_path):
    assert error_lines("INFO : An error rate of 0.1\nNote: all good\n") == []
    assert read_errors(tmp_path / "absent.log") == []
