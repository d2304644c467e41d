"""A model as three flat vectors: trainable floats, floating buffers, integer counters.

The model's tensors are views into the vectors, so loading a model is one copy per vector and an
optimiser, a norm or an average is plain vector arithmetic. Keeping the three apart means that no
optimiser can touch BatchNorm's running statistics. Convolution weights lie channels_last inside
the vector where asked, so the memory format costs nothing per round.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from fedsyn_flwr.compute.device import overwrite, to_host
from fedsyn_flwr.errors import UserError
from fedsyn_flwr.models import SplitModel

KINDS = ("trainable", "buffers", "counters")
Vectors = dict[str, np.ndarray]
M = TypeVar("M", bound=nn.Module, default=SplitModel)


@dataclass(frozen=True)
class Slot:
    """One named tensor's place in the vector of its kind."""

    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    channels_last: bool

    @property
    def stop(self) -> int:
        """The first index after the tensor."""
        return self.start + int(np.prod(self.shape, dtype=np.int64))

    def view(self, vector: Tensor) -> Tensor:
        """The tensor, as a view into ``vector``."""
        piece = vector[self.start : self.stop]
        if not self.channels_last:
            return piece.view(self.shape)
        o, i, h, w = self.shape
        return piece.view(o, h, w, i).permute(0, 3, 1, 2)


def _kind(name: str, tensor: Tensor, parameters: set[str]) -> str:
    if name in parameters:
        return "trainable"
    return "buffers" if tensor.is_floating_point() else "counters"


def _slots(module: nn.Module, channels_last: bool) -> list[Slot]:
    parameters = {name for name, _ in module.named_parameters()}
    ends = dict.fromkeys(KINDS, 0)
    slots = []
    for name, tensor in module.state_dict(keep_vars=True).items():
        kind = _kind(name, tensor, parameters)
        is_image = channels_last and tensor.dim() == 4
        slots.append(Slot(name, kind, tuple(tensor.shape), ends[kind], is_image))
        ends[kind] = slots[-1].stop
    return slots


class FlatModel(Generic[M]):
    """A module whose tensors live in flat vectors.

    Attributes
    ----------
    module
        The network; its parameters and buffers are views.
    trainable : Tensor
        Shape (P,), float32: the parameters.
    buffers : Tensor
        Shape (Q,), float32: running means and variances.
    counters : Tensor
        Shape (R,), int64: ``num_batches_tracked``.
    layout : str
        Hash of names, kinds, shapes and order. Vectors of another layout are refused.
    """

    def __init__(self, module: M, *, channels_last: bool = True) -> None:
        self.module = module
        self.slots = _slots(module, channels_last)
        self.layout = hashlib.sha256(repr(self.slots).encode()).hexdigest()[:16]
        device = next(module.parameters()).device
        self.trainable = self._vector("trainable", torch.float32, device)
        self.buffers = self._vector("buffers", torch.float32, device)
        self.counters = self._vector("counters", torch.int64, device)
        self._tensors: list[tuple[Slot, Tensor]] = []
        self._adopt()

    def _vector(self, kind: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        size = max((s.stop for s in self.slots if s.kind == kind), default=0)
        return torch.zeros(size, dtype=dtype, device=device)

    @torch.no_grad()
    def _adopt(self) -> None:
        """Move every tensor's value into its vector and make the tensor a view of it."""
        tensors: dict[str, Any] = self.module.state_dict(keep_vars=True)
        for slot in self.slots:
            tensor = tensors[slot.name]
            view = slot.view(getattr(self, slot.kind))
            view.copy_(tensor)
            tensor.data = view
            self._tensors.append((slot, tensor))

    def move(self, home: Vectors) -> None:
        """Live in these vectors from now on, with the values that are in them (on the CPU)."""
        for kind in KINDS:
            setattr(self, kind, torch.from_numpy(home[kind]))
        for slot, tensor in self._tensors:
            tensor.data = slot.view(getattr(self, slot.kind))

    @cached_property
    def parameters(self) -> list[Tensor]:
        """The network's parameters, in the vector's order."""
        return [tensor for slot, tensor in self._tensors if slot.kind == "trainable"]

    @cached_property
    def _places(self) -> tuple[Tensor, list[Tensor]]:
        """A vector for the gradient, and each parameter's place in it."""
        whole = torch.zeros_like(self.trainable)
        return whole, [slot.view(whole) for slot in self.slots if slot.kind == "trainable"]

    def backward(self, objective: Tensor) -> None:
        """The gradient of a scalar, over what was there; it stays where PyTorch makes it.

        To have it added to zeros, or copied, takes passes over the memory that plain SGD can do
        without.
        """
        for parameter in self.parameters:
            parameter.grad = None
        objective.backward()

    @property
    def gradients(self) -> list[Tensor]:
        """Each parameter's gradient, in the vector's order."""
        if any(parameter.grad is None for parameter in self.parameters):
            self.gather()  # where the objective does not depend on one, its gradient is 0
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    @property
    def grad(self) -> Tensor:
        """The gradient as one vector, shape (P,), float32: what is done to it is done to each."""
        self.gather()
        return self._places[0]

    @grad.setter
    def grad(self, value: Tensor) -> None:
        self.grad.copy_(value)  # of itself, as after ``+=``, that is nothing

    @torch.no_grad()
    def gather(self) -> None:
        """Bring the gradients together in one vector; ``trainable.grad`` is that, too."""
        whole, places = self._places
        for parameter, place in zip(self.parameters, places, strict=True):
            if parameter.grad is None:
                place.zero_()
            elif parameter.grad is not place:
                place.copy_(parameter.grad)
            parameter.grad = place
        self.trainable.grad = whole

    def vectors(self) -> Vectors:
        """The three vectors as NumPy arrays (views on CPU: copy before the model changes)."""
        arrays = to_host(getattr(self, kind) for kind in KINDS)
        return dict(zip(KINDS, arrays, strict=True))

    @property
    def variances(self) -> list[slice]:
        """Where the running variances lie in the buffers."""
        return [slice(s.start, s.stop) for s in self.slots if s.name.endswith("running_var")]

    def copy_vectors(self) -> Vectors:
        """The three vectors, copied."""
        return {kind: array.copy() for kind, array in self.vectors().items()}

    @torch.no_grad()
    def load(self, vectors: Vectors) -> None:
        """Overwrite the model, one copy per vector.

        Raises
        ------
        UserError
            If a vector has another length than this model's.
        """
        for kind in KINDS:
            own, new = getattr(self, kind), vectors[kind]
            if new.shape != tuple(own.shape):
                raise UserError(
                    f"model mismatch: {kind} has {new.shape[0]} values, expected {own.shape[0]}; "
                    "server and clients must run the same conf and version"
                )
            overwrite(own, new)

    def named(self) -> dict[str, Tensor]:
        """Contiguous copies by name, for safetensors."""
        return {
            s.name: s.view(getattr(self, s.kind)).detach().cpu().contiguous().clone()
            for s in self.slots
        }

    def part(self, prefix: str, vectors: Vectors) -> dict[str, Tensor]:
        """Copies of the tensors below ``prefix`` (``classifier.``) of a model of these vectors.

        They go by their names inside that part.
        """
        return {
            s.name.removeprefix(prefix): s.view(torch.from_numpy(vectors[s.kind])).clone()
            for s in self.slots
            if s.name.startswith(prefix)
        }

    def digest(self) -> str:
        """SHA-256 of the model's bits."""
        return digest(self.vectors())


def digest(vectors: Vectors) -> str:
    """SHA-256 of the three vectors' bytes."""
    sha = hashlib.sha256()
    for kind in KINDS:
        sha.update(np.ascontiguousarray(vectors[kind]).tobytes())
    return sha.hexdigest()
