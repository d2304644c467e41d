"""A round's books."""

from fedsyn_flwr.server.round_record import RoundRecord


def test_counts_seconds_and_failures_add_up() -> None:
    record = RoundRecord()
    record.count("bytes/up", 5)
    record.count("bytes/up", 7)
    record.count("clients/joined")
    record.spend("training", 1.5)
    record.spend("training", 0.5)
    record.fail(3, "no memory")
    record.reject(1, "its model has NaN")
    record.add({"dp/epsilon": 2.0})
    assert record.metrics == {
        "bytes/down": 0,
        "bytes/up": 12,
        "clients/failed": 2,
        "clients/joined": 1,
        "clients/rejected": 1,
        "seconds/training": 2.0,
        "dp/epsilon": 2.0,
    }
    assert record.reasons == ["client 3: no memory", "client 1: its model has NaN"]
    assert record.failed == {1, 3}


def test_closing_enters_what_clients_measured() -> None:
    record = RoundRecord()
    record.costs.add({"flops/training": 10.0, "train-loss": 9.0})
    record.costs.add({"flops/training": 30.0})
    record.close()
    assert record.metrics["flops/training"] == 20.0
    assert "train-loss" not in record.metrics
    assert record.metrics["memory/server_peak_mb"] > 0  # type: ignore[operator]


def test_a_new_round_has_empty_books() -> None:
    record = RoundRecord()
    record.reject(1, "late")
    record.open()
    assert record.metrics == {"bytes/down": 0, "bytes/up": 0, "clients/failed": 0}
    assert record.reasons == []
    assert record.failed == set()
