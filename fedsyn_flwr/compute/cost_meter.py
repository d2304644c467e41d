"""What a client's work costs: floating-point operations, seconds and memory.

Operations are counted by PyTorch's own formulas (`torch.utils.flop_counter`: matrix products,
convolutions and their gradients, a multiply-add is two). Counting slows a step down, so a process
counts each kind of step once, while doing it, and multiplies from then on.
"""

import logging
import resource
import sys
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What a client's metrics about its cost begin with.
PREFIXES = ("flops/", "client_seconds/", "memory/")

_KNOWN: dict[Hashable, int] = {}


class FlopCounter(TorchDispatchMode):
    """Counts the operations done inside its ``with`` block; the results stay as they are.

    `FlopCounterMode` would also follow which module calls, by hooks on the model, and cannot do
    so through the second derivatives of some losses; the sum needs no module.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.formulas = 0, _formulas()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to skip its compiler PyTorch would load it first, two seconds in every actor."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


def _formulas() -> Any:
    """PyTorch's formulas, without Triton, whose kernels are not counted: 76 MB and 0.7 s less."""
    triton = "triton.runtime.jit"
    hidden = triton not in sys.modules
    if hidden:
        sys.modules[triton] = None  # type: ignore[assignment]  # an import of it fails
        logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # which is no news
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        if hidden:
            del sys.modules[triton]
    return flop_registry


class Meter:
    """The operations and seconds of one phase of one client.

    Parameters
    ----------
    phase : str
        ``training`` or ``synthesis``: the last part of the metrics' names.
    key : tuple
        All that decides what a step costs, apart from what `counted` is told.
    """

    def __init__(self, phase: str, *key: Hashable) -> None:
        self.phase, self.key = phase, key
        self.flops, self.start = 0, time.perf_counter()

    @contextmanager
    def counted(self, *kind: Hashable) -> Iterator[None]:
        """Around a step; steps of one kind (its name and shape) all cost the same."""
        key = (self.phase, *self.key, *kind)
        if key in _KNOWN:
            yield
        else:
            with FlopCounter() as counter:
                yield
            _KNOWN[key] = counter.flops
        self.flops += _KNOWN[key]

    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.start

    def metrics(self) -> dict[str, float]:
        """Operations and seconds since the start, and the process's peak memory."""
        return {
            f"flops/{self.phase}": float(self.flops),
            f"client_seconds/{self.phase}": self.seconds(),
            **{f"memory/client_{name}": value for name, value in peak_memory().items()},
        }


def peak_memory() -> dict[str, float]:
    """``peak_mb`` of this process's resident set in MB (10^6 bytes), ``cuda_peak_mb`` on CUDA."""
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peaks["cuda_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return peaks
