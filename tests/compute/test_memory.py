"""No method keeps more from round to round: what grows by a model a client would be seen here."""

import ctypes
import gc
from pathlib import Path
from typing import Any

import pytest
from harness import Federation

KEYS: dict[str, Any] = {
    "limit-train": 80,
    "limit-test": 40,
    "num-server-rounds": 60,
    "batch-size": 20,
    "partition": "iid",
    "model": "mlp",
    "model-width": 0.25,
    "synthesis-every": 10,
    "synthesis-per-client": 4,
    "synthesis-steps": 1,
    "mrtf-steps": 1,
    "privacy-report": False,
    "evaluate-every": 30,
    "checkpoint-every": 10,
}


FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(field, ctypes.c_size_t) for field in FIELDS]


def in_use() -> float:
    """MB that are allocated, whatever freed memory the process has kept."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Mallinfo
    found = ask()
    return (found.uordblks + found.hblkhd) / 1e6


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="reads glibc's heap")
@pytest.mark.parametrize("strategy", ["fedavg", "hfmds", "moon", "scaffold", "mrtf"])
def test_memory_stays(tmp_path: Path, strategy: str) -> None:
    f = Federation(tmp_path, 4, strategy=strategy, **KEYS)
    model = sum(vector.nbytes for vector in f.model.values()) / 1e6
    seen: list[float] = []
    for server_round in (20, 60):
        f.after(server_round, lambda: seen.append(in_use()))
    f.run()
    kept = 40 * 4 * model  # one more for each answer
    assert kept > 50
    assert seen[1] - seen[0] < kept / 10
