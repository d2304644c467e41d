"""One client must never end a run: whatever it answers, it is left out with a reason.

Every method, every kind: client 1 of four answers like that in every phase of every round.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import FitRes
from harness import Federation, LocalProxy

from fedsyn_flwr.messages.payload import Groups, from_parameters, is_finite, to_parameters
from fedsyn_flwr.registry import METHODS

QUICK: dict[str, Any] = {
    "num-server-rounds": 2,
    "limit-train": 120,
    "limit-test": 60,
    "model-width": 0.25,
    "synthesis-every": 1,
    "synthesis-per-client": 4,
    "synthesis-steps": 2,
    "gan-rounds": 1,
    "gan-steps": 1,
    "gan-width": 4,
    "mrtf-steps": 2,
    "fedgen-iterations": 2,
    "partition": "iid",
}


# ---- what is done to an answer: its bytes, its arrays, its words


def header(result: FitRes, text: str) -> None:
    """Another JSON header in front of the same arrays."""
    file = io.BytesIO()
    np.save(file, np.frombuffer(text.encode(), np.uint8))
    result.parameters.tensors[0] = file.getvalue()


def bytes_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(2))
    return file.getvalue()


def shape_of(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def last_array(raw: bytes) -> Callable[[FitRes, str], None]:
    def change(result: FitRes, layout: str) -> None:
        result.parameters.tensors[-1] = raw

    return change


def names(groups: str) -> Callable[[FitRes, str], None]:
    return lambda result, layout: header(result, f'{{"layout": "{layout}", "groups": {groups}}}')


def each(change: Callable[[np.ndarray], Any]) -> Callable[[FitRes, str], None]:
    """Change every array of every group."""

    def apply(result: FitRes, layout: str) -> None:
        groups: Groups = from_parameters(result.parameters, layout)
        changed = {n: {k: np.array(change(a)) for k, a in g.items()} for n, g in groups.items()}
        result.parameters = to_parameters(changed, layout)

    return apply


def without_groups(result: FitRes, layout: str) -> None:
    result.parameters = to_parameters({}, layout)


def empty_groups(result: FitRes, layout: str) -> None:
    groups = from_parameters(result.parameters, layout)
    result.parameters = to_parameters({name: {} for name in groups}, layout)


def more_groups(result: FitRes, layout: str) -> None:
    groups = from_parameters(result.parameters, layout)
    result.parameters = to_parameters({**groups, "more": {"x": np.zeros(3)}}, layout)


def no_tensors(result: FitRes, layout: str) -> None:
    result.parameters.tensors = []


def examples(count: Any) -> Callable[[FitRes, str], None]:
    def change(result: FitRes, layout: str) -> None:
        result.num_examples = count

    return change


KINDS: dict[str, Callable[[FitRes, str], None]] = {
    "zip": last_array(npz()),
    "text": last_array(bytes_of(np.array(["a", "b"]))),
    "bytes": last_array(bytes_of(np.array([b"a"]))),
    "struct": last_array(bytes_of(np.zeros(2, [("a", "f4")]))),
    "void": last_array(bytes_of(np.zeros(2, "V4"))),
    "datetime": last_array(bytes_of(np.zeros(2, "M8[s]"))),
    "complex": last_array(bytes_of(np.zeros(2, complex))),
    "3.6 TiB": last_array(shape_of("(1000000000000,)")),
    "10^23": last_array(shape_of("(100000000000000000000000,)")),
    "broken header": last_array(shape_of("(5,")),
    "no bytes": last_array(b""),
    "groups 5": names("5"),
    "groups null": names("null"),
    "groups a list": names('[["x"]]'),
    "groups of brackets": names("[" * 100_000),
    "groups of unhashable": names('{"model": [{}]}'),
    "no groups": without_groups,
    "empty groups": empty_groups,
    "more groups": more_groups,
    "no tensors": no_tensors,
    "float64": each(lambda a: a.astype(np.float64) * 1.0000001 if a.dtype != np.uint8 else "x"),
    "shape ()": each(lambda a: a.dtype.type(0)),
    "transposed": each(lambda a: a.reshape(1, -1)),
    "NaN": each(lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else -a.astype("i8") - 9),
    "huge": each(lambda a: np.full_like(a, 3.4e38) if a.dtype.kind == "f" else a + 10**6),
    "minus 5 examples": examples(-5),
    "2^62 examples": examples(2**62),
    "1.5 examples": examples(1.5),
}


def attack(kind: Callable[[FitRes, str], None]) -> type[LocalProxy]:
    class Hostile(LocalProxy):
        def fit(self, ins: Any, timeout: Any, group_id: Any) -> FitRes:
            result = super().fit(ins, timeout, group_id)
            if self.partition == 1:
                kind(result, self.worker.flat.layout)
            return result

    return Hostile


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedgen", "fedgan", "fedmix", "hfmds"])
def test_a_hostile_client_is_left_out(tmp_path: Path, method: str, kind: str) -> None:
    f = Federation(tmp_path, 4, attack(KINDS[kind]), **QUICK, strategy=method).run()
    status = json.loads((f.folder / "status.json").read_text())
    assert status["status"] == "completed", status["reason"]
    for row in f.rows():
        assert row["clients/failed"] == row["clients/rejected"] >= 1
        assert row["bytes/up"] < 10**8
    assert all(reason.startswith("client 1: ") for reason in f.strategy.record.reasons)
    assert is_finite(f.model)
    assert np.abs(f.model["trainable"]).max() < 100
    if f.strategy.pool.arrays:
        assert len(f.strategy.pool.arrays["labels"]) <= 3 * 8


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["missing", "x", float("nan"), True])
def test_a_loss_that_is_none_is_a_rejection(tmp_path: Path, method: str, loss: Any) -> None:
    def change(result: FitRes, layout: str) -> None:
        if result.metrics["phase"] == "train":
            result.metrics["train-loss"] = loss
            if loss == "missing":
                del result.metrics["train-loss"]

    keys = {**QUICK, "num-server-rounds": 1}
    f = Federation(tmp_path, 4, attack(change), **keys, strategy=method).run()
    (row,) = f.rows()
    assert row["clients/rejected"] == 1
    assert "client 1: its train-loss is" in f.strategy.record.reasons[0]
    assert np.isfinite(row["clients/train_loss"])


def test_what_fails_in_a_method_is_its_clients_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = Federation(tmp_path, 4, **QUICK, strategy="fedavg")

    def fold(update: Any) -> None:
        if update.partition == 1:
            raise KeyError("momentum")

    monkeypatch.setattr(f.strategy, "fold", fold)
    f.run()
    assert [row["clients/rejected"] for row in f.rows()] == [1, 1]
    assert f.strategy.record.reasons == [
        "client 1: its answer could not be used: KeyError: 'momentum'"
    ]
