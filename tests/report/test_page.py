"""The page: what it says, what it survives, and that nothing in it can run."""

import re

import pytest
from finished import fedsyn, write

from fedsyn_flwr.report.page import charts, compared, content, render
from fedsyn_flwr.report.page.render import html


def grid(tmp_path, methods=("fedavg", "hfmds"), seeds=3, rounds=3):
    for i, method in enumerate(methods):
        for seed in range(seeds):
            curve = [0.1 * (i + 1) + 0.01 * r + 0.003 * seed * (i + 1) for r in range(rounds)]
            write(tmp_path / f"{method}-{seed}", accuracies=curve, strategy=method, seed=seed)
    return tmp_path


def page(*folders):
    return content.read([str(folder) for folder in folders])


def test_the_best_row_is_marked_and_the_others_tested_against_it(tmp_path):
    rows = {row.label: row for row in page(grid(tmp_path)).rows}
    assert rows["hfmds"].winner
    assert not rows["fedavg"].winner
    assert rows["fedavg"].pairs == 3
    # differences 0.1, 0.103, 0.106: t = 0.103 / (0.003 / sqrt 3) = 59.47, two degrees of freedom
    t, wilcoxon = rows["fedavg"].against
    assert t == pytest.approx(0.000283, rel=0.01)
    assert wilcoxon == pytest.approx(0.25)


def test_two_seeds_are_not_tested(tmp_path):
    assert [row.against for row in page(grid(tmp_path, seeds=2)).rows] == [None, None]


def test_equal_runs_have_no_p_value():
    assert compared.p_values([0.5, 0.6, 0.7], [0.5, 0.6, 0.7]) == (None, None)
    t, wilcoxon = compared.p_values([1.0, 2.0, 3.0], [0.0, 1.0, 2.0])
    assert t is None
    assert wilcoxon == pytest.approx(0.25)


def test_only_axes_that_were_measured_are_drawn(tmp_path):
    write(tmp_path / "old", strategy="fedavg", last={"round": 2})
    names = [chart.name for chart in page(tmp_path).accuracy]
    assert names == ["accuracy-rounds", "accuracy-seconds", "accuracy-bytes"]


def test_flops_are_summed_without_the_privacy_report(tmp_path):
    write(tmp_path / "a", strategy="hfmds", last={"flops/training": 7, "flops/privacy": 90})
    [chart] = [c for c in page(tmp_path).accuracy if c.name == "accuracy-flops"]
    assert chart.data[0]["x"] == [0, 7]


def test_failed_runs_and_runs_without_a_round_are_told(tmp_path):
    failed = write(tmp_path / "f", status="failed", accuracies=(), strategy="fedavg")
    (failed / "flwr.log").write_text("WARNING :   odd <keys>\nERROR :   it broke\n")
    told = page(tmp_path)
    assert told.rows == []
    assert told.outcomes[0].errors == ["it broke"]
    assert told.outcomes[0].warnings == ["odd <keys>"]
    assert "odd &lt;keys&gt;" in html(told)


def test_nothing_a_run_says_becomes_markup(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    write(tmp_path / "a", strategy=evil, dataset=evil, seed=0, last={f"flops/{evil}": 3})
    write(tmp_path / "b", strategy="fedavg", dataset=evil, seed=0)
    text = html(page(tmp_path))
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert text.count("<script") == 2 + len(re.findall(r'type="application/json"', text))


def test_what_differs_is_told_apart_from_what_does_not(tmp_path):
    told = page(grid(tmp_path, seeds=1))
    assert [key for key, _ in told.differing][:1] == ["strategy"]
    assert dict(told.differing)["strategy"] == ["fedavg", "hfmds"]
    assert "learning-rate" in dict(told.common)


def test_thirty_runs_of_a_hundred_rounds_stay_under_five_megabytes(tmp_path):
    ten = ("fedavg", "fedprox", "moon", "scaffold", "fedgen", "fedmix", "fmds", "hfmds")
    text = html(page(grid(tmp_path, (*ten, "naivemix", "fedgan"), rounds=100)))
    assert len(text.encode()) < 5_000_000


def test_the_command_says_where_the_page_is(tmp_path, monkeypatch, capsys):
    grid(tmp_path, seeds=1)
    assert fedsyn(monkeypatch, "report", tmp_path, "--no-pictures") == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert "<!DOCTYPE html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_folder_without_runs_is_one_line(tmp_path, monkeypatch, capsys):
    assert fedsyn(monkeypatch, "report", tmp_path) == 2
    assert "holds no run" in capsys.readouterr().err


def test_what_needs_missing_files_is_noted(tmp_path):
    config = {"strategy": "fedavg", "data-dir": str(tmp_path / "gone"), "num-clients": 3}
    write(tmp_path / "a", dataset="cifar10", **config)
    out = render.write([str(tmp_path)], tmp_path / "page.html")
    assert "Not shown" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("colour", charts.COLOURS)
def test_line_colours_stand_out_on_both_pages(colour):
    """WCAG 1.4.11: 3:1 against what is beside them."""
    for background in ("#ffffff", "#14181d"):
        light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
