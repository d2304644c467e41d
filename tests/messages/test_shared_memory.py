"""Shared memory: the same arrays, nothing left, nobody else's."""

import errno
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, FitRes, ndarrays_to_parameters
from hypothesis import given, settings
from test_flat_payload import groups

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages import payload, shared_memory, transport
from fedsyn_flwr.messages.payload import from_parameters, hold, nbytes, points, to_parameters
from fedsyn_flwr.server.requests import call

pytestmark = pytest.mark.skipif(not shared_memory.supported(), reason="needs Linux's memfd")


def files() -> int:
    """Open descriptors of shared memory of ours in this process; a map has one, too."""
    gc.collect()
    shared_memory._SLOTS.forget_gone()
    shared_memory._MESSAGES.known.clear()
    links = (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd_is(fd))
    return sum("memfd:fedsyn-flwr" in link for link in links)


def fd_is(fd: str) -> bool:
    return Path(f"/proc/self/fd/{fd}").is_symlink()


def model(value: float = 1.0) -> dict[str, dict[str, np.ndarray]]:
    return {"model": {"w": np.full(5_000, value, np.float32), "n": np.arange(3)}}


@settings(deadline=None, max_examples=60)
@given(groups)
def test_the_same_groups_as_in_the_message(sent: dict[str, dict[str, np.ndarray]]) -> None:
    inline, pointer = to_parameters(sent, "a"), to_parameters(sent, "a", by_reference=True)
    assert nbytes(pointer) == nbytes(inline)
    got, expected = from_parameters(hold(pointer), "a"), from_parameters(inline, "a")
    assert list(got) == list(expected)
    for name in expected:
        assert list(got[name]) == list(expected[name])
        for key, array in expected[name].items():
            assert (got[name][key].dtype, got[name][key].shape) == (array.dtype, array.shape)
            assert got[name][key].tobytes() == array.tobytes()


def test_a_message_is_small_and_its_memory_is_written_again() -> None:
    to_parameters(model(), "a", by_reference=True)  # one file is kept
    before = files()
    sent = [to_parameters(model(i), "a", by_reference=True) for i in range(3)]
    assert all(points(parameters) for parameters in sent)
    assert all(sum(len(t) for t in parameters.tensors) < 1_000 for parameters in sent)
    assert files() == before + 4  # two more files and their maps
    assert [values(parameters) for parameters in sent] == [0, 1, 2]
    del sent
    assert files() == before
    assert values(to_parameters(model(7), "a", by_reference=True)) == 7


def values(parameters: Any) -> float:
    """The one value of a model's vector."""
    (value,) = set(from_parameters(hold(parameters), "a")["model"]["w"].tolist())
    return float(value)


def test_who_comes_too_late_finds_nothing() -> None:
    """Rather than what was written there since."""
    parameters = to_parameters(model(1), "a", by_reference=True)
    late = ndarrays_to_parameters([payload._first(parameters)])
    assert values(late) == 1
    del parameters
    again = to_parameters(model(2), "a", by_reference=True)
    with pytest.raises(shared_memory.SenderGone):
        hold(late)
    assert values(again) == 2


def test_what_may_be_read_late_is_not_written_again() -> None:
    parameters = to_parameters(model(1), "a", by_reference=True)
    reader = from_parameters(hold(parameters), "a")["model"]["w"]

    class Silent:
        def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
            raise ValueError("Error: Message Unavailable")

    reply = call(0, Silent(), FitIns(parameters, {"round": 1}), None)  # type: ignore[arg-type]
    assert reply.reason == "no answer within round-timeout"
    del parameters
    to_parameters(model(2), "a", by_reference=True)
    assert set(reader.tolist()) == {1.0}


def test_a_receiver_cannot_write_what_others_read() -> None:
    parameters = to_parameters(model(), "a", by_reference=True)
    with pytest.raises(ValueError, match="read-only"):
        from_parameters(hold(parameters), "a")["model"]["w"][:] = 7


def test_a_message_longer_than_the_last_is_read_to_its_end() -> None:
    for size in (10, 50_000, 20):
        arrays = {"model": {"w": np.full(size, size, np.float32)}}
        assert values(to_parameters(arrays, "a", by_reference=True)) == size


def test_a_slot_is_written_again_once_nobody_looks_at_it() -> None:
    slots = shared_memory.Slots()
    places = [slots.write([np.full(9_000, i, np.float32)], message="round 1") for i in range(2)]
    assert len(slots.files) == 2
    first, second = (shared_memory.opened(place)[0] for place in places)  # type: ignore[arg-type]
    view = first[5:7]
    del first
    slots.write([np.full(9_000, 2, np.float32)], message="round 2")
    assert len(slots.files) == 3  # both are still looked at
    assert view.tolist() == [0, 0]
    del view
    slots.write([np.full(9_000, 3, np.float32)], message="round 2")
    assert len(slots.files) == 3
    assert second.tolist() == [1] * 9_000


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [1]])
@pytest.mark.parametrize("more", [0, 50_000])
def test_an_answer_made_in_its_slot_is_sent_as_it_is(order: list[int], more: int) -> None:
    """In place where it begins with what was lent, and whole where it does not, or grows."""
    slots, like = shared_memory.Slots(), [np.zeros(700, np.float32), np.zeros(30, np.int64)]
    lent = slots.lend(like, "round 1")
    assert lent is not None
    for i, array in enumerate(lent):
        array[:] = np.arange(len(array)) + i
    answer = [*(lent[i] for i in order), np.ones(more)]
    expected = [array.tolist() for array in answer]
    place = slots.write(answer, "round 1")
    assert place is not None
    assert [array.tolist() for array in shared_memory.opened(place)] == expected
    (file, _) = slots.files[0]
    assert len(slots.files) == 1
    assert place["fd"] == file.fd


def test_an_answer_that_was_not_taken_in_its_round_is_overwritten() -> None:
    slots = shared_memory.Slots()
    lost = slots.write([np.ones(4)], message="round 1")
    slots.write([np.ones(4)], message="round 1")
    assert len(slots.files) == 2
    again = slots.write([np.zeros(40)], message="round 2")
    assert len(slots.files) == 2
    assert lost is not None
    assert again is not None
    assert lost["fd"] == again["fd"]
    assert shared_memory.opened(again)[0].tolist() == [0] * 40


CHILD = """
import json, sys
import numpy as np
from fedsyn_flwr.messages import shared_memory as shared
file, other = shared.File(), shared.File()
print(json.dumps(file.write([np.arange(1000)], slot=True)), flush=True)
print(json.dumps(other.write([np.arange(1000)], slot=True)), flush=True)
sys.stdin.readline()
print(file.use, flush=True)
sys.stdin.readline()
"""


def test_between_processes_and_after_the_sender_is_gone() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    place, unread = (json.loads(child.stdout.readline()) for _ in range(2))
    (array,) = shared_memory.opened(place)
    child.stdin.write("\n")
    child.stdin.flush()
    assert int(child.stdout.readline()) == shared_memory.TAKEN
    child.kill()
    child.wait()
    assert array.tolist() == list(range(1000))
    with pytest.raises(shared_memory.SenderGone):
        shared_memory.opened(unread)


def test_a_slot_that_grows_is_read_to_its_end() -> None:
    slots = shared_memory.Slots()
    for size in (10, 50_000, 20):
        place = slots.write([np.full(size, size, np.float64)], message=size)
        assert place is not None
        (array,) = shared_memory.opened(place)
        assert array.tolist() == [size] * size
        del array
    assert len(slots.files) == 1


def test_slots_that_are_gone_are_forgotten() -> None:
    gone, other = shared_memory.Slots(), shared_memory.Slots()
    shared_memory.opened(gone.write([np.ones(5)], message=1))  # type: ignore[arg-type]
    token = gone.files[0][0].token.hex()
    assert token in known_tokens()
    del gone
    gc.collect()
    shared_memory.opened(other.write([np.ones(5)], message=1))  # type: ignore[arg-type]
    assert token not in known_tokens()


def known_tokens() -> set[str]:
    return {
        pages[shared_memory.TOKEN].tobytes().hex() for pages in shared_memory._SLOTS.known.values()
    }


def test_another_file_under_the_same_number_is_not_read() -> None:
    file = shared_memory.File()
    place = file.write([np.ones(3)])
    assert place is not None
    with pytest.raises(shared_memory.SenderGone, match="something else"):
        shared_memory.opened({**place, "token": "00" * 16})
    file.close()
    with pytest.raises(shared_memory.SenderGone):
        shared_memory.opened(place)


def test_without_room_the_message_carries_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    fallocate = os.posix_fallocate

    def full(fd: int, start: int, size: int) -> None:
        if size > shared_memory.HEAD:
            raise OSError(errno.ENOSPC, "No space left on device")
        fallocate(fd, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(payload, "OUTBOX", shared_memory.Outbox())
    parameters = to_parameters(model(), "a", by_reference=True)
    assert not points(parameters)
    assert from_parameters(parameters, "a")["model"]["w"].sum() == 5_000


def test_a_strangers_pointer_is_not_followed() -> None:
    parameters = to_parameters(model(), "a", by_reference=True)
    with pytest.raises(UserError, match="payload of 0 arrays, its header names 2"):
        from_parameters(parameters, "a")


@pytest.mark.parametrize(
    "place", [None, 3, {}, {"pid": 1}, {"pid": os.getpid(), "fd": 0, "token": "x", "slot": True}]
)
def test_a_damaged_pointer_is_an_error_of_its_own(place: Any) -> None:
    header = json.dumps({"layout": "a", "groups": {}, "place": place}).encode()
    parameters = ndarrays_to_parameters([np.frombuffer(header, np.uint8)])
    with pytest.raises((UserError, shared_memory.SenderGone)):
        hold(parameters)
    assert not transport.seen(json.dumps(place))
