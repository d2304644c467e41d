"""Reports of runs whose server has no test set: the clients' figures stand in."""

from fedsyn_flwr.report import measures
from fedsyn_flwr.report.curves import curve
from fedsyn_flwr.report.progress import round_line

ROWS = [
    {
        "round": number,
        "clients/test_accuracy": accuracy,
        "clients/test_loss": 2.5,
        "clients/test_accuracy_worst10": accuracy / 2,
        "personalised/test_accuracy": 0.9,
        "clients/class_0_accuracy": 1.0,
    }
    for number, accuracy in ((1, 0.25), (2, 0.75), (3, 0.5))
]


def test_accuracies_are_the_clients() -> None:
    assert measures.accuracies(ROWS) == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert (measures.best(ROWS), measures.final(ROWS), measures.recent(ROWS)) == (0.75, 0.5, 0.5)
    assert measures.rounds_to(ROWS, 0.6) == 2


def test_the_servers_come_first() -> None:
    rows = [{**row, "server/test_accuracy": 0.125} for row in ROWS]
    assert measures.best(rows) == 0.125
    assert curve("", [rows], "rounds").mean.tolist() == [0.125] * 3


def test_curves_and_lines_show_them() -> None:
    assert curve("", [ROWS], "rounds").mean.tolist() == [0.25, 0.75, 0.5]
    assert "0.7500" in round_line(ROWS[1], 3)
    assert "2.5000" in round_line(ROWS[1], 3)


def test_tables_have_all_but_the_classes() -> None:
    assert measures.measured(ROWS) == {
        "clients/test_accuracy": 0.5,
        "clients/test_loss": 2.5,
        "clients/test_accuracy_worst10": 0.25,
        "personalised/test_accuracy": 0.9,
    }
