"""Passes that are recorded once as a CUDA graph and replayed: one launch instead of hundreds.

What is recorded is the forward and the backward pass: tensors in, tensors out. Random numbers,
the data, corrections of the gradient, clipping and the optimiser stay outside, so no state of a
client or of an optimiser is frozen into a graph and the next client can replay it.

On the CPU the same happens with the recorded function in the graph's place: it is called on the
same buffers and writes to the same buffers, which is no faster but can be tested. Nothing here has
been run on a GPU so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]
F = TypeVar("F", bound=Callable[..., Any])

# Real passes of a shape before it is recorded: cuDNN chooses its kernels and makes its handles.
WARM_UP = 3
# Recorded shapes per kind of pass, as each keeps its memory; passes of other shapes stay plain.
SHAPES = 4


class Passes(Protocol):
    """How a forward and backward pass is done."""

    def __call__(self, key: Hashable, work: Work, *inputs: Tensor) -> Tensors:
        """``work(*inputs)``; equal keys say that another pass's work does just as well."""


def plainly(key: Hashable, work: Work, *inputs: Tensor) -> Tensors:
    """Without graphs."""
    return work(*inputs)


def replayable(function: F) -> F:
    """Mark a client's ``loss``, ``objective`` or ``watch`` as one that may be recorded.

    It must depend on nothing but its arguments, the run's keys, `step_kind` and models that stay
    where they are (the resident one and its spares); draw no random numbers on the host; write to
    nothing; and not look at any value. A method that overrides it loses the mark: it stays plain
    until someone has checked it. Plain is FedGen, which draws labels and noise within its pass
    with weights that change from round to round.
    """
    function.replayable = True  # type: ignore[attr-defined]
    return function


def is_replayable(kind: type) -> bool:
    """Whether all that a client's class does within a pass is marked."""
    parts = (kind.loss, kind.objective, kind.watch)  # type: ignore[attr-defined]
    return all(getattr(part, "replayable", False) for part in parts)


class Graphs:
    """The recorded passes of one process.

    Not safe for threads, as the resident model is not.

    Parameters
    ----------
    on : bool
        Off, every pass is done plainly.
    """

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.recorded: dict[Hashable, Recorded] = {}
        self.seen: dict[Hashable, int] = {}

    def of(self, *kind: Hashable) -> Passes:
        """The passes of one kind, for one caller."""
        return partial(self.run, kind) if self.on else plainly

    def run(self, kind: Hashable, key: Hashable, work: Work, *inputs: Tensor) -> Tensors:
        """A pass: recorded and replayed, or plain while its shape is new or there are too many.

        Parameters
        ----------
        kind, key : hashable
            What decides, together with the shapes, what the pass does.
        work : callable
            Tensors → tensors. The one that was recorded is kept and does it for all that follow.
        inputs : Tensor
            Copied to where the recorded pass reads them.

        Returns
        -------
        tuple of Tensor
            The caller's own; a replay does not change them.
        """
        group = (kind, key)
        exact = (group, *map(_form, inputs))
        found = self.recorded.get(exact)
        if found is None:
            seen = self.seen[exact] = self.seen.get(exact, 0) + 1
            if self._count(group) >= SHAPES:
                return work(*inputs)
            if seen <= WARM_UP:
                return _aside(work, inputs)
            found = self.recorded[exact] = Recorded(work, inputs)
        return found(*inputs)

    def _count(self, group: Hashable) -> int:
        return sum(exact[0] == group for exact in self.recorded)  # type: ignore[index]


class Recorded:
    """A pass with its buffers.

    Parameters
    ----------
    work : callable
        Tensors → tensors; kept, and with it all that the graph reads.
    inputs : tuple of Tensor
        Of the shapes and strides of all inputs to come.
    """

    def __init__(self, work: Work, inputs: Tensors) -> None:
        self.work, self.inputs = work, tuple(x.detach().clone() for x in inputs)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Tensors | None = None
        if _on_cuda(inputs):
            self._capture()

    def _capture(self) -> None:
        """Record the kernels; nothing is computed yet."""
        self.graph, device = torch.cuda.CUDAGraph(), self.inputs[0].device
        stream = _side_stream(device)
        try:
            with torch.cuda.device(device), torch.cuda.graph(self.graph, stream=stream):
                self.outputs = self.work(*self.inputs)
        except RuntimeError as error:
            raise RuntimeError(
                f"cuda-graphs = true: this step cannot be recorded ({error}); set it to false"
            ) from error

    def __call__(self, *inputs: Tensor) -> Tensors:
        """Replay on other inputs."""
        for buffer, x in zip(self.inputs, inputs, strict=True):
            buffer.copy_(x)
        self._replay()
        assert self.outputs is not None
        return tuple(out.clone() for out in self.outputs)

    def _replay(self) -> None:
        if self.graph is not None:
            self.graph.replay()
            return
        fresh = self.work(*self.inputs)
        if self.outputs is None:
            self.outputs = fresh
        for buffer, out in zip(self.outputs, fresh, strict=True):
            buffer.copy_(out)


def _form(x: Tensor) -> Hashable:
    """What a recorded pass has fixed of an input."""
    return tuple(x.shape), x.stride(), x.dtype, x.device


def _on_cuda(inputs: Tensors) -> bool:
    return any(x.is_cuda for x in inputs)


def _aside(work: Work, inputs: Tensors) -> Tensors:
    """A real pass on another stream, as PyTorch asks for before a capture; plain on the CPU."""
    if not _on_cuda(inputs):
        return work(*inputs)
    device = inputs[0].device
    here, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        outputs = work(*inputs)
    here.wait_stream(side)
    for out in outputs:
        out.record_stream(here)
    return outputs


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
