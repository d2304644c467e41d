"""Models through shared memory in a federation: the same bits, whoever sees it or dies."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import Code, FitIns, FitRes, Status
from flwr.server import Server
from harness import Federation, LocalProxy, told
from test_shared_memory import files, model

from fedsyn_flwr.messages import payload, shared_memory, transport
from fedsyn_flwr.messages.payload import from_parameters, hold, to_parameters
from fedsyn_flwr.models.flat_model import digest
from fedsyn_flwr.server.requests import call

pytestmark = pytest.mark.skipif(not shared_memory.supported(), reason="needs Linux's memfd")

KEYS: dict[str, Any] = {
    "num-server-rounds": 3,
    "limit-train": 200,
    "model-width": 0.25,
    "synthesis-every": 1,
    "synthesis-per-client": 4,
    "synthesis-steps": 3,
    "gan-rounds": 2,
    "gan-steps": 2,
    "gan-width": 4,
}


@pytest.mark.parametrize("strategy", ["scaffold", "hfmds", "fedgan", "fedgen", "moon", "mrtf"])
def test_both_transports_end_in_the_same_bits(strategy: str, tmp_path: Path) -> None:
    # The first federation leaves two files open in its process; no later one adds to them.
    Federation(tmp_path / "first", 4, **KEYS, strategy=strategy, transport="shared").run()
    before, ends = files(), []
    for kind in ("inline", "shared"):
        f = Federation(tmp_path / kind, 4, **KEYS, strategy=strategy, transport=kind).run()
        assert f.strategy.codec.by_reference == (kind == "shared")
        rows = [{k: v for k, v in row.items() if k[:6] in ("bytes/", "server")} for row in f.rows()]
        ends.append((digest(f.model), rows))
        assert len(rows) == KEYS["num-server-rounds"]
    assert ends[0] == ends[1]
    del f
    assert files() == before


def test_a_model_is_not_received_where_an_answer_waits(tmp_path: Path) -> None:
    """Its last home is the answer to an earlier message, of whatever phase."""
    f = Federation(tmp_path, 2, **KEYS, strategy="hfmds", transport="shared")
    f.strategy.codec.by_reference = True
    message = f.strategy.codec.encode({"model": f.model})
    answers, contents = [], []
    for number, phase in enumerate(["train", "synthesis", "synthesis", "train", "synthesis"], 1):
        config = {**told(number, phase), "partition": 0}
        reply = f.proxies[0].fit(FitIns(message, config), None, None)
        assert reply.status.code == Code.OK
        answers.append(from_parameters(hold(reply.parameters), f.strategy.flat.layout))
        contents.append(snapshot(answers[-1]))
        if number == 1:
            answers[0] = {}  # read, and free again
    assert [snapshot(answer) for answer in answers[1:]] == contents[1:]


def snapshot(groups: dict[str, dict[str, np.ndarray]]) -> list[bytes]:
    return [array.tobytes() for group in groups.values() for array in group.values()]


def test_without_room_for_the_answer_the_model_lives_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in its last home, which is an answer."""
    plain = Federation(tmp_path / "a", 3, **KEYS, strategy="hfmds").run()
    lend, asked = shared_memory.Slots.lend, itertools.count()
    monkeypatch.setattr(
        shared_memory.Slots, "lend", lambda *of: None if next(asked) % 2 else lend(*of)
    )
    f = Federation(tmp_path / "b", 3, **KEYS, strategy="hfmds", transport="shared").run()
    assert digest(f.model) == digest(plain.model)


def test_flowers_own_server_reads_shared_memory_too(tmp_path: Path) -> None:
    plain = Federation(tmp_path / "a", 3, **KEYS, strategy="fedavg").run()
    f = Federation(tmp_path / "b", 3, **KEYS, strategy="fedavg", transport="shared")
    Server(client_manager=f.manager, strategy=f.strategy).fit(KEYS["num-server-rounds"], None)
    assert f.strategy.codec.by_reference
    assert digest(f.model) == digest(plain.model)


class Mortal(LocalProxy):
    """Its process ends before its first answer is read."""

    def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
        result = super().fit(ins, timeout, group_id)
        if len(self.calls) == 1:
            file, _ = self.worker.slots.files.pop()
            file.close()
        return result


def test_an_answer_that_died_with_its_process_is_asked_for_again(tmp_path: Path) -> None:
    plain = Federation(tmp_path / "a", 2, **KEYS, strategy="fedavg").run()
    mortal = Federation(tmp_path / "b", 2, Mortal, **KEYS, strategy="fedavg", transport="shared")
    mortal.run()
    assert digest(mortal.model) == digest(plain.model)
    assert [row["clients/failed"] for row in mortal.rows()] == [0, 0, 0]
    assert [len(p.calls) for p in mortal.proxies] == [4, 4]


def test_who_gets_arrays_must_answer_with_arrays(tmp_path: Path) -> None:
    """A real node cannot make the server open files of its own choice."""

    class Pointing(LocalProxy):
        def fit(self, ins: FitIns, timeout: Any, group_id: Any) -> FitRes:
            sent = to_parameters(model(), "a", by_reference=True)
            kept.append(sent)
            return FitRes(Status(Code.OK, ""), sent, 1, {})

    kept: list[Any] = []
    f = Federation(tmp_path, 2, Pointing, **KEYS, strategy="fedavg")
    reply = call(0, f.proxies[0], FitIns(f.strategy.parameters, {"round": 1}), None)
    assert reply.result is not None
    assert not isinstance(reply.result.parameters, payload.Held)


class Elsewhere(LocalProxy):
    """A client on another machine."""

    def get_properties(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        answer = super().get_properties(ins, timeout, group_id)
        answer.properties[transport.SEEN] = False
        return answer


def test_clients_elsewhere_get_their_arrays_in_the_message(tmp_path: Path) -> None:
    f = Federation(tmp_path / "auto", 2, Elsewhere, **KEYS, strategy="fedavg").run()
    assert f.strategy.codec.by_reference is False
    f = Federation(tmp_path / "b", 2, Elsewhere, **KEYS, strategy="fedavg", transport="shared")
    f.run()
    status = json.loads((f.folder / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["reason"].startswith('transport = "shared", but not every client sees')


def test_auto_shares_in_a_simulation_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for simulated, machines, expected in [(True, 1, True), (True, 2, False), (False, 1, False)]:
        monkeypatch.setattr(transport, "in_simulation", lambda simulated=simulated: simulated)
        monkeypatch.setattr(transport, "machines", lambda machines=machines: machines)
        assert transport.Probe("auto").decide(all_see=True) is expected
        assert transport.Probe("auto").decide(all_see=False) is False
        assert transport.Probe("inline").decide(all_see=True) is False
