"""What a client keeps, by the round that the server counted."""

from pathlib import Path

import numpy as np

from fedsyn_flwr.client.own_state import OwnState
from fedsyn_flwr.client.state import VersionedStore
from fedsyn_flwr.messages.instruction import LOST, SAVED, Instruction


def own(folder: Path, number: int, last: int, last_settled: int = 0) -> OwnState:
    told = Instruction("run", number, "train", last=last, last_settled=last_settled)
    return OwnState(VersionedStore(folder), told)


def at(value: float) -> dict[str, np.ndarray]:
    return {"c": np.array([value], np.float32)}


def test_nothing_in_the_first_round(tmp_path: Path) -> None:
    first = own(tmp_path, 1, last=0)
    assert first.load() is None
    assert first.said == {LOST: False}


def test_a_repeated_round_sees_what_it_saw_the_first_time(tmp_path: Path) -> None:
    own(tmp_path, 1, last=0).save(at(1))
    own(tmp_path, 2, last=1).save(at(2))  # an answer that did not count
    again = own(tmp_path, 2, last=1)
    assert again.load()["c"] == 1  # type: ignore[index]
    again.save(at(20))
    assert own(tmp_path, 3, last=2).load()["c"] == 20  # type: ignore[index]
    assert again.said == {LOST: False, SAVED: True}


def test_what_a_repeated_run_may_ask_for_is_kept(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        own(tmp_path, number, last=number - 1, last_settled=1).save(at(number))
    assert VersionedStore(tmp_path).versions() == [1, 2, 3]
    own(tmp_path, 4, last=3, last_settled=3).save(at(4))
    assert VersionedStore(tmp_path).versions() == [3, 4]


def test_a_loss_is_said(tmp_path: Path) -> None:
    lost = own(tmp_path, 5, last=4)
    assert lost.load() is None
    assert lost.said == {LOST: True}


def test_nan_is_not_kept(tmp_path: Path) -> None:
    diverged = own(tmp_path, 1, last=0)
    diverged.save(at(float("nan")))
    assert diverged.said == {}
    assert VersionedStore(tmp_path).versions() == []
