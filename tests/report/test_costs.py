"""The table of costs, with hand-computed numbers."""

import csv
import io
import json

import pytest
from finished import fedsyn, write

from fedsyn_flwr.report.aggregate import Stat
from fedsyn_flwr.report.costs import cells, cost_rows, costs, csv_text, phases
from fedsyn_flwr.report.curves import Run

PLAIN = [
    {"round": 1, "flops/training": 2e6, "client_seconds/training": 1.0, "bytes/down": 3000},
    {"round": 2, "flops/training": 4e6, "client_seconds/training": 2.0, "bytes/down": 5000},
]
SYNTHESIS = {
    "flops/synthesis": 8e6,
    "client_seconds/synthesis": 3.0,
    "client_seconds/privacy": 9.0,
    "memory/client_peak_mb": 900.0,
}


def run(rows, **config):
    folder = f"/r/{config.get('strategy', 'fedavg')}-{config.get('seed', 0)}"
    return Run(folder, {"strategy": "fedavg", "seed": 0, **config}, rows)


def hfmds(rows, **more):
    return [rows[0], {**rows[1], **SYNTHESIS, **more}]


def test_costs_are_spread_over_all_rounds_and_memory_is_the_peak():
    first = {**PLAIN[0], "memory/client_peak_mb": 950.0}
    assert costs([first, *hfmds(PLAIN)[1:]]) == {
        "flops/training": 3e6,
        "flops/synthesis": 4e6,
        "flops": 7e6,
        "client_seconds/training": 1.5,
        "client_seconds/synthesis": 1.5,
        "client_seconds/privacy": 4.5,
        "client_seconds": 3.0,  # without looking at the images
        "bytes/down": 4000,
        "memory/client_peak_mb": 950.0,
    }


def test_phases_in_order_whatever_their_names():
    names = ["flops/synthesis", "flops/privacy", "flops/gan", "flops/training", "client_seconds/x"]
    assert phases(dict.fromkeys(names), "flops") == ["training", "gan", "synthesis", "privacy"]
    assert phases({"bytes/up": 1}, "flops") == []


def test_rows_are_means_over_seeds_and_relate_to_the_first():
    quicker = hfmds([PLAIN[0], PLAIN[0]])
    groups = [[run(PLAIN)], [run(hfmds(PLAIN), strategy="hfmds"), run(quicker, strategy="hfmds")]]
    fedavg, other = cost_rows(groups)
    assert (fedavg.label, fedavg.n, other.label, other.n) == ("fedavg", 1, "hfmds", 2)
    assert fedavg.relative == {"flops": 1.0, "client_seconds": 1.0}
    assert other.costs["flops/training"] == Stat(2.5e6, pytest.approx(0.5**0.5 * 1e6), 2)
    assert other.relative == {"flops": 6.5 / 3, "client_seconds": pytest.approx(2.75 / 1.5)}


def test_table_has_a_dash_for_what_a_method_does_not_do():
    groups = [[run(PLAIN)], [run(hfmds(PLAIN), strategy="hfmds")]]
    headers, rows = cells(cost_rows(groups))
    assert headers == [
        *("", "n", "training FLOPs", "synthesis FLOPs", "x FLOPs", "training s", "synthesis s"),
        *("privacy s", "x s", "down", "up", "client peak"),
    ]
    assert rows == [
        ["fedavg", "1", "3.00 M", "—", "1.00", "1.500 ± —", "—", "—", "1.00", "4.00 kB", "—", "—"],
        [
            *("hfmds", "1", "3.00 M", "4.00 M", "2.33", "1.500 ± —", "1.500 ± —", "4.500 ± —"),
            *("2.00", "4.00 kB", "—", "900 MB"),
        ],
    ]


def test_runs_that_measured_nothing_are_rows_without_figures():
    rows = [{"round": 1, "server/test_accuracy": 0.5}]
    headers, lines = cells(cost_rows([[run(rows)]]))
    assert (headers[-4:], lines[0][-4:]) == (["x FLOPs", "x s", "down", "up"], ["—"] * 4)


def test_csv_has_a_line_per_run_under_the_names_of_the_metrics():
    groups = [[run(PLAIN), run(PLAIN, seed=1)], [run(hfmds(PLAIN), strategy="hfmds")]]
    lines = list(csv.DictReader(io.StringIO(csv_text(groups))))
    assert [(line["method"], line["seed"]) for line in lines] == [
        ("fedavg", "0"),
        ("fedavg", "1"),
        ("hfmds", "0"),
    ]
    assert [line["flops/synthesis"] for line in lines] == ["", "", "4000000.0"]


def test_the_command_prints_the_table_and_keeps_it(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        folder = write(tmp_path / "r" / str(seed), strategy="fedavg", seed=seed)
        lines = ({**row, "server/test_accuracy": 0.5} for row in PLAIN)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert fedsyn(monkeypatch, "cost", str(tmp_path / "r"), "--out", str(tmp_path / "t")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "training FLOPs" in out
    assert "fedavg" in out
    assert out.splitlines()[-3:] == [
        str(tmp_path / "t" / f"cost.{x}") for x in ("md", "csv", "json")
    ]
    table = (tmp_path / "t" / "cost.md").read_text().splitlines()
    assert table[0].startswith("|  | n | training FLOPs | x FLOPs | training s |")
    assert table[2].startswith("| fedavg | 2 | 3.00 M | 1.00 | 1.500 ± 0.000 | 1.00 | 4.00 kB |")
    assert not any(line.startswith("- machine") for line in table)
    content = json.loads((tmp_path / "t" / "cost.json").read_text())
    assert content["rows"][0]["costs"]["flops"] == {"mean": 3e6, "std": 0.0, "n": 2}
