"""How often a simulation's replies are looked for."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedsyn_flwr.exchange import FLOWERS_INTERVAL, exchange, look_often


def proxies(count: int, grid: Any) -> list[Any]:
    return [SimpleNamespace(grid=grid) for _ in range(count)]


@pytest.mark.parametrize(("clients", "seconds"), [(1, 0.002), (10, 0.02), (50, 0.1), (1000, 0.1)])
def test_few_replies_are_looked_for_often(clients: int, seconds: float) -> None:
    grid = InMemoryGrid(state_factory=SimpleNamespace(state=lambda: None))  # type: ignore[arg-type]
    assert grid.pull_interval == FLOWERS_INTERVAL
    look_often(proxies(clients, grid))
    assert grid.pull_interval == pytest.approx(seconds)


def test_an_exchange_sets_it_for_those_it_asks() -> None:
    """And again for the next, be they fewer or more."""

    def fit(ins: Any, timeout: Any, group_id: Any) -> Any:
        seen.append(grid.pull_interval)
        raise ValueError("Node Unavailable")

    grid, seen = SimpleNamespace(pull_interval=FLOWERS_INTERVAL), list[float]()
    roster: Any = {k: SimpleNamespace(grid=grid, fit=fit) for k in range(30)}
    message: Any = SimpleNamespace(parameters=SimpleNamespace(tensors=[]), config={"round": 1})
    for count in (5, 30):
        assert len(list(exchange(roster, dict.fromkeys(range(count), message), None))) == count
    assert seen == [0.01] * 5 + [0.06] * 30


def test_other_grids_keep_their_pace() -> None:
    grid = SimpleNamespace()
    look_often([*proxies(2, grid), SimpleNamespace()])  # type: ignore[list-item]
    assert vars(grid) == {}
