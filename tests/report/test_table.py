"""Means over seeds and the tables made of them, with hand-computed numbers."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedsyn_flwr.report.aggregate import Record, Stat, group_rows, stat
from fedsyn_flwr.report.table import (
    Origin,
    Summary,
    csv_text,
    json_text,
    markdown,
    notes,
    outcome,
    plus_minus,
    terminal_tables,
)

ORIGIN = Origin("fedsyn compare c", "2026-11-30 03:00:00+00:00", "a CPU, 2 cores", {"flwr": "1.42"})


def run(method, seed, accuracies, seconds=1.0, status="completed", setting=(), **last):
    rows = [
        {"round": i, "server/test_accuracy": a, "seconds/round": seconds, "bytes/down": 1000}
        for i, a in enumerate(accuracies, 1)
    ]
    rows[-1:] = [{**row, **last} for row in rows[-1:]]
    name = f"c-{method}-s{seed}"
    return Record(name, "c", method, setting, seed, Path("/r") / name, status, "", rows)


RECORDS = [
    run("fedavg", 0, [0.5, 0.7]),
    run("hfmds", 0, [0.95, 0.85], 3.0, **{"privacy/psnr_mean": 8.0}),
    run("fedavg", 1, [0.6, 0.9]),
    run("hfmds", 1, [0.8], 2.0, "failed"),
]


def test_stat_is_the_sample_deviation():
    assert stat([1.0, None, 2.0, 3.0]) == Stat(2.0, 1.0, 3)
    assert stat([2]) == Stat(2.0, None, 1)
    assert stat([None]) is None


def test_group_rows():
    fedavg, hfmds = group_rows(RECORDS, target=0.9)
    assert (fedavg.method, fedavg.seeds, fedavg.n) == ("fedavg", 2, 2)
    assert fedavg.final == Stat(pytest.approx(0.8), pytest.approx(0.02**0.5), 2)
    assert fedavg.best == fedavg.final
    assert (fedavg.target, fedavg.reached) == (Stat(2.0, None, 1), 1)
    assert fedavg.down == Stat(2000.0, 0.0, 2)
    assert (fedavg.relative, hfmds.relative) == (1.0, 3.0)
    assert (hfmds.seeds, hfmds.n, hfmds.reached) == (2, 1, 1)
    assert (hfmds.final, hfmds.best) == (Stat(0.85, None, 1), Stat(0.95, None, 1))
    assert hfmds.measured == {"privacy/psnr_mean": Stat(8.0, None, 1)}


def test_relative_is_to_the_first_method_of_the_same_setting():
    pairs = [("fedavg", 1, 1.0), ("hfmds", 1, 2.0), ("fedavg", 2, 4.0), ("hfmds", 2, 6.0)]
    records = [run(m, 0, [0.5], s, setting=(("batch-size", b),)) for m, b, s in pairs]
    assert [row.relative for row in group_rows(records, 0.9)] == [1.0, 2.0, 1.0, 1.5]
    alone = [record for record in records if record.method == "fedavg"]
    assert [row.relative for row in group_rows(alone, 0.9)] == [1.0, 4.0]


def test_relative_to_nothing_is_nothing():
    records = [run("fedavg", 0, [0.5], status="failed"), run("hfmds", 0, [0.5])]
    assert [row.relative for row in group_rows(records, 0.9)] == [None, None]


def test_markdown():
    records = [*RECORDS[:3], Record(**{**vars(RECORDS[3]), "reason": "out of memory"})]
    lines = markdown(Summary(records, 0.9, ORIGIN)).splitlines()
    assert lines[:4] == [
        "| conf | method | n | final accuracy | last 5 | best accuracy | rounds to 0.9 | down | up "
        "| s/round | ratio | seconds | privacy/psnr_mean (dB) |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| c | fedavg | 2 | 0.8000 ± 0.1414 | 0.6750 ± 0.1061 | 0.8000 ± 0.1414 | 2.0 ± — (1/2) "
        "| 2.00 kB | 0 B | 1.00 ± 0.00 | ×1.00 | 2.0 ± 0.0 | — |",
        "| c | hfmds | 1 of 2 | 0.8500 ± — | 0.9000 ± — | 0.9500 ± — | 1.0 ± — (1/1) "
        "| 2.00 kB | 0 B | 3.00 ± — | ×3.00 | 6.0 ± — | 8.00 ± — |",
    ]
    assert "Not completed, and not in the table: 1" in lines
    assert "- c-hfmds-s1: failed after 1 rounds: out of memory" in lines
    assert lines[-4:] == [
        "- made by: `fedsyn compare c`",
        "- date: 2026-11-30 03:00:00+00:00",
        "- machine: a CPU, 2 cores",
        "- versions: flwr 1.42",
    ]


def test_a_target_nobody_reached_and_a_group_without_a_run():
    records = [run("fedavg", 0, [0.5]), run("hfmds", 0, [0.5], status="failed")]
    rows = markdown(Summary(records, 0.75, ORIGIN)).splitlines()[2:4]
    assert rows[0].split(" | ")[6] == "— (0/1)"
    assert rows[1] == "| c | hfmds | 0 of 1 " + "| — " * 9 + "|"


@pytest.mark.parametrize(
    ("stat_", "text"),
    [(None, "—"), (Stat(0.5, None, 1), "0.50 ± —"), (Stat(0.5, 0.125, 2), "0.50 ± 0.12")],
)
def test_plus_minus(stat_, text):
    assert plus_minus(stat_, ".2f") == text


def test_measured_values_have_three_digits():
    values = {"dp/epsilon": 0.012345, "gan/kept": 320, "privacy/psnr_mean": 12.345, "gan/none": 0}
    records = [run("mrtf", 0, [0.5], **values)]
    row = markdown(Summary(records, 0.9, ORIGIN)).splitlines()[2]
    assert row.split(" | ")[-4:] == ["0.0123 ± —", "320 ± —", "0.00 ± —", "12.3 ± — |"]


def test_csv_has_a_line_per_run_and_blanks_for_what_was_not_measured():
    lines = list(csv.DictReader(io.StringIO(csv_text(Summary(RECORDS, 0.9, ORIGIN)))))
    assert [line["run"] for line in lines] == [
        "c-fedavg-s0",
        "c-hfmds-s0",
        "c-fedavg-s1",
        "c-hfmds-s1",
    ]
    assert [line["rounds_to_target"] for line in lines] == ["", "1", "2", ""]
    assert [line["privacy/psnr_mean"] for line in lines] == ["", "8.0", "", ""]
    assert lines[3]["status"] == "failed"
    assert lines[0]["folder"] == "/r/c-fedavg-s0"


def test_json_holds_groups_runs_and_origin():
    records = [run("fedavg", 0, [0.5], setting=(("momentum", 0.5),))]
    content = json.loads(json_text(Summary(records, 0.9, ORIGIN)))
    assert content["command"] == "fedsyn compare c"
    assert content["groups"][0]["setting"] == {"momentum": 0.5}
    assert content["groups"][0]["final"] == {"mean": 0.5, "std": None, "n": 1}
    assert content["runs"][0]["momentum"] == 0.5


def test_a_narrow_terminal_gets_the_table_in_parts():
    summary = Summary(RECORDS, 0.9, ORIGIN)

    def headers(width):
        return [[c.header for c in part.columns] for part in terminal_tables(summary, width)]

    whole = headers(400)
    assert len(whole) == 1
    assert whole[0][:2] == ["method", "n"]  # a single conf is not repeated
    parts = headers(80)
    assert [part[0] for part in parts] == ["method"] * len(parts)
    assert [name for part in parts for name in part[1:]] == whole[0][1:]
    console = Console(width=80, file=io.StringIO(), record=True)
    for part in terminal_tables(summary, 80):
        console.print(part)
    assert "…" not in console.export_text()


def test_outcome_of_a_run_not_begun():
    assert outcome(Record("x", "c", "fedavg", (), 0, Path("/x"))) == "x: waiting"


PRIVACY = {
    f"privacy/{name}": 12.345
    for name in (
        "psnr_mean",
        "psnr_p95",
        "psnr_max",
        "ssim_mean",
        "nearest_distance",
        "reid_chance",
    )
}


def test_a_terminal_of_120_columns_has_the_essentials_in_one_table():
    big = {"bytes/down": 18_100_000, "bytes/up": 11_600_000}
    records = [
        run(method, seed, [0.9 + seed / 100] * 12, 12.5, **big, **more)
        for method, more in (
            ("fedadagrad", {}),
            ("hfmds", {**PRIVACY, "privacy/reid_pixel": 0.0358}),
        )
        for seed in (0, 1)
    ]
    (table,) = terminal_tables(Summary(records, 0.9, ORIGIN), 120)
    assert [column.header for column in table.columns] == [
        *("method", "n", "final accuracy", "rounds to 0.9", "down", "up", "s/round", "ratio"),
        *("PSNR (dB)", "re-id (%)"),
    ]
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table)
    text = console.export_text()
    assert "…" not in text
    hfmds = text.splitlines()[-2].split()
    assert hfmds[:5] == ["hfmds", "2", "0.9050", "±", "0.0071"]
    assert hfmds[5:7] == ["1.0", "(2/2)"]
    assert hfmds[-7:] == ["×1.00", "12.3", "±", "0.0", "3.58", "±", "0.00"]
    assert any("re-id" in note for note in notes(Summary(records, 0.9, ORIGIN)))
    # the rest is kept
    assert "privacy/ssim_mean" in csv_text(Summary(records, 0.9, ORIGIN))


def test_a_sweep_of_one_method_does_not_repeat_its_name():
    settings = [(("hfmds-mu", mu),) for mu in (0.0, 0.5)]
    records = [run("hfmds", 0, [0.5], setting=setting) for setting in settings]
    (table,) = terminal_tables(Summary(records, 0.9, ORIGIN), 120)
    assert [column.header for column in table.columns][:3] == ["hfmds-mu", "n", "final accuracy"]
