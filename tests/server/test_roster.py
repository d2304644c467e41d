"""Nodes that leave and come during a run: who takes whose place, and what they are sent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import Code, FitIns, FitRes, GetPropertiesRes, Status
from harness import LocalProxy, OwnFederation
from PIL import Image

from fedsyn_flwr.data import load
from fedsyn_flwr.messages.payload import from_parameters
from fedsyn_flwr.server.roster import Roster

KEYS: dict[str, Any] = {
    "strategy": "hfmds",
    "num-server-rounds": 5,
    "model-width": 0.25,
    "synthesis-every": 3,
    "synthesis-per-client": 4,
    "synthesis-steps": 5,
}


class Node:
    """A connected node that only says who it is."""

    def __init__(self, cid: str, asked: list[str], **answer: Any) -> None:
        self.cid, self.asked, self.answer = cid, asked, answer

    def get_properties(self, ins: Any, timeout: Any, group_id: Any) -> GetPropertiesRes:
        self.asked.append(self.cid)
        answer = {key.replace("_", "-"): value for key, value in self.answer.items()}
        return GetPropertiesRes(Status(Code.OK, ""), answer)


class Nodes(dict[str, Node]):
    """Flower's list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def join(self, cid: str, **answer: Any) -> None:
        self[cid] = Node(cid, self.asked, **answer)

    def all(self) -> dict[str, Node]:
        return self

    def num_available(self) -> int:
        return len(self)


def gathered(*names: str) -> tuple[Nodes, Roster]:
    nodes, roster = Nodes(), Roster(timeout=1.0)
    for number, name in enumerate(names):
        nodes.join(str(number), node_name=name)
    roster.gather(nodes, len(names))  # type: ignore[arg-type]
    nodes.asked.clear()
    return nodes, roster


def places(roster: Roster) -> dict[int, str]:
    return {place: proxy.cid for place, proxy in roster.items()}


def renewed(roster: Roster, nodes: Nodes) -> list[int]:
    return roster.renew(nodes)  # type: ignore[arg-type]


def test_a_federation_that_stays_costs_no_message() -> None:
    nodes, roster = gathered("a", "b")
    assert renewed(roster, nodes) == []
    assert nodes.asked == []


def test_a_place_is_kept_for_a_node_that_left() -> None:
    nodes, roster = gathered("a", "b")
    away = nodes.pop("1")
    assert renewed(roster, nodes) == []
    assert places(roster) == {0: "0", 1: "1"}
    nodes["1"] = away
    assert renewed(roster, nodes) == []
    assert nodes.asked == []


@pytest.mark.parametrize("arrival", [("7", "8"), ("8", "7")])
def test_the_same_name_comes_first_then_the_order_of_names(arrival: tuple[str, str]) -> None:
    nodes, roster = gathered("a", "b", "c")
    names = {"7": "c", "8": "aa"}  # by its name alone, aa would get the first free place too
    del nodes["1"], nodes["2"]
    for cid in arrival:
        nodes.join(cid, node_name=names[cid])
    assert sorted(renewed(roster, nodes)) == [1, 2]
    assert places(roster) == {0: "0", 1: "8", 2: "7"}
    assert roster.names == {0: "a", 1: "aa", 2: "c"}


def test_without_a_free_place_a_newcomer_waits_and_is_asked_once() -> None:
    nodes, roster = gathered("a", "b")
    nodes.join("9", node_name="z")
    assert renewed(roster, nodes) == renewed(roster, nodes) == []
    del nodes["0"]
    assert renewed(roster, nodes) == [0]
    assert nodes.asked == ["9"]
    nodes.join("0", node_name="a")  # back, but too late
    assert renewed(roster, nodes) == []
    assert places(roster) == {0: "9", 1: "1"}


def test_a_second_node_of_a_name_waits_until_the_first_has_gone() -> None:
    """After kill -9 a node counts as connected for a minute, and its replacement is there."""
    nodes, roster = gathered("a", "b", "c")
    nodes.join("9", node_name="b")
    del nodes["0"]
    assert renewed(roster, nodes) == []
    del nodes["1"]
    assert renewed(roster, nodes) == [1]
    assert roster.names == {0: "a", 1: "b", 2: "c"}


def test_a_newcomer_with_other_images_is_left_out_and_the_run_goes_on() -> None:
    nodes, roster = gathered("a", "b")
    roster.shape = (1, 8, 8)
    del nodes["0"]
    nodes.join("9", node_name="z", image_shape="1x9x9")
    assert renewed(roster, nodes) == renewed(roster, nodes) == []
    assert nodes.asked == ["9"]


def test_a_node_started_with_a_partition_takes_this_one_only() -> None:
    nodes, roster = Nodes(), Roster(timeout=1.0)
    for k in range(3):
        nodes.join(str(k), partition_id=k, num_partitions=3)
    roster.gather(nodes, 3)  # type: ignore[arg-type]
    del nodes["0"], nodes["1"]
    nodes.join("8", partition_id=1, num_partitions=3)
    nodes.join("9", partition_id=5, num_partitions=6)
    assert renewed(roster, nodes) == [1]
    assert places(roster) == {0: "0", 1: "8", 2: "2"}


# ---- whole runs


class Watched(LocalProxy):
    """Keeps the pools it is sent, by round."""

    pools: Mapping[int, np.ndarray] = {}

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        answer = super().fit(ins, timeout, group_id)
        groups = from_parameters(ins.parameters, self.worker.flat.layout)
        if "synthetic" in groups:
            self.pools = {**self.pools, int(ins.config["round"]): groups["synthetic"]["images"]}
        return answer


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSYN_CACHE_DIR", str(tmp_path / "cache"))
    train = load("digits", "train", limit=200)
    for i, (image, label) in enumerate(zip(train.images, train.labels, strict=True)):
        path = tmp_path / "sites" / "abcd"[i % 4] / str(label) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
    return tmp_path / "sites"


def test_a_newcomer_takes_the_place_and_gets_the_current_pool(tmp_path: Path, sites: Path) -> None:
    f = OwnFederation(tmp_path, sites, ["a", "b", "c"], proxy=Watched, **KEYS)
    leaving, newcomer = f.proxies[1], f.node("77", "d", Watched)

    newcomer.misses = {(5, "train")}

    def swap() -> None:
        f.manager.unregister(leaving)
        f.manager.register(newcomer)

    f.after(3, swap)
    f.after(4, lambda: f.manager.unregister(newcomer))
    f.run()
    assert [row["clients/failed"] for row in f.rows()] == [0, 0, 0, 0, 1]
    assert [row.get("clients/joined", 0) for row in f.rows()] == [0, 0, 0, 1, 0]
    assert leaving.pools.keys() == {3}  # type: ignore[attr-defined]
    assert newcomer.pools.keys() == {4}  # type: ignore[attr-defined]
    np.testing.assert_array_equal(newcomer.pools[4], f.strategy.pool.arrays["images"])  # type: ignore[attr-defined]
    assert newcomer.calls[0]["partition"] == 1
    assert {p.name for p in (tmp_path / "state" / f.strategy.codec.run).iterdir()} == {
        *(f"client-{name}" for name in "abcd"),
        "pool",
    }
