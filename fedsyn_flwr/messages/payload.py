"""What travels: named groups of arrays ⇄ Flower's list of NDArrays.

The first array is a header (JSON as uint8) that names the groups, their arrays and the layout of
the model, so a list is understood without outside knowledge and nothing is matched by position
alone. Where both sides are processes of one machine the header can say where the arrays lie in
shared memory instead of going before them; the groups are the same bit for bit.
"""

import io
import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.common import (
    GRPC_MAX_MESSAGE_LENGTH,
    NDArrays,
    Parameters,
    ndarrays_to_parameters,
)

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages import shared_memory
from fedsyn_flwr.messages.npy import read

Group = dict[str, np.ndarray]
Groups = dict[str, Group]

MESSAGE_LIMIT = GRPC_MAX_MESSAGE_LENGTH // 2
"""Bytes of the largest message, 1 GiB: half of what Flower and protobuf can carry, 2^31 - 1, for a
message is more than its arrays, and is in the memory of either side more than once."""


HEADER_LIMIT = 2**16  # bytes of the names of all groups and arrays


def is_finite(group: Group) -> bool:
    """Whether every number of a group's arrays is finite."""
    return all(_is_finite(array) for array in group.values())


def _is_finite(array: np.ndarray) -> bool:
    """By the sum of squares, which BLAS has at the speed of memory; that may also overflow."""
    if array.dtype == np.float32:
        flat = array.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(flat, flat)):
                return True
    return bool(np.isfinite(array).all())


def shapes(group: Group) -> dict[str, tuple[int, ...]]:
    """Array name → shape."""
    return {name: array.shape for name, array in group.items()}


def pack(groups: Groups, layout: str, share: shared_memory.Share | None = None) -> NDArrays:
    """Groups as a list of arrays: header first, then every group's arrays in order.

    Parameters
    ----------
    groups : dict
        Group → array name → array.
    layout : str
        The model's layout.
    share : callable, optional
        Puts the arrays into shared memory, so that the header is all there is to send; where it
        has no room for them they are sent.

    Raises
    ------
    UserError
        If they are too much for one message.
    """
    check_size({name: sum(a.nbytes for a in group.values()) for name, group in groups.items()})
    names = {group: list(arrays) for group, arrays in groups.items()}
    flat = [array for arrays in groups.values() for array in arrays.values()]
    whole = [_encoded({"layout": layout, "groups": names}), *flat]
    place = share(flat) if share and flat else None
    if place is None:
        return whole
    size = sum(serialised_size(array) for array in whole)
    return [_encoded({"layout": layout, "groups": names, "place": place, "size": size})]


def _encoded(header: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)


def _decoded(array: np.ndarray) -> dict[str, Any]:
    """The header; UserError if it is not one of ours."""
    try:
        header: dict[str, Any] = json.loads(array[:HEADER_LIMIT].tobytes())
        if isinstance(header["layout"], str) and _is_naming(header["groups"]):
            return header
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError("payload without a header: the sender is not this app")


def _is_naming(groups: Any) -> bool:
    """Whether these are lists of names by group, each name once."""
    return isinstance(groups, dict) and all(
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and len(set(names)) == len(names)
        for names in groups.values()
    )


def serialised_size(array: np.ndarray) -> int:
    """Bytes of an array in NumPy's file format, which Flower sends."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    return len(head.getvalue()) + array.nbytes


def check_size(sizes: Mapping[str, int]) -> None:
    """Refuse groups, of so many bytes each, that are too much for one message."""
    if sum(sizes.values()) <= MESSAGE_LIMIT:
        return
    parts = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in sizes.items())
    raise UserError(
        f"a message of {sum(sizes.values()) / 1e6:,.1f} MB ({parts}) is over the limit of "
        f'{MESSAGE_LIMIT / 1e6:,.1f} MB: a smaller pool-max, synthetic-dtype = "uint8", or a '
        "smaller model"
    )


def unpack(arrays: NDArrays, layout: str) -> Groups:
    """The groups of a list made by `pack`.

    Raises
    ------
    UserError
        If the list has no header of ours, lacks arrays, or its model has another layout.
    """
    header = _decoded(arrays[0] if arrays else np.zeros(0, np.uint8))
    names: dict[str, list[str]] = header["groups"]
    if header["layout"] != layout:
        raise UserError(
            f"model layout {header['layout']} received, {layout} expected: "
            "server and clients must run the same conf and version"
        )
    named = sum(len(members) for members in names.values())
    if named != len(arrays) - 1:
        raise UserError(f"payload of {len(arrays) - 1} arrays, its header names {named}")
    rest = iter(arrays[1:])
    return {group: {name: next(rest) for name in members} for group, members in names.items()}


def is_shared(arrays: NDArrays) -> bool:
    """Whether a list of `pack` says where its arrays are instead of holding them."""
    return len(arrays) == 1 and "place" in _decoded(arrays[0])


def fetched(arrays: NDArrays) -> NDArrays:
    """The list with its arrays, from where it says they are.

    Raises
    ------
    shared.SenderGone
        If they are there no more.
    UserError
        If it says so in a way that is not ours.
    """
    if not is_shared(arrays):
        return arrays
    try:
        return [arrays[0], *shared_memory.opened(_decoded(arrays[0])["place"])]
    except (KeyError, TypeError, ValueError, OSError, OverflowError) as error:
        raise UserError(f"shared memory cannot be read: {error}") from None


@dataclass
class Held(Parameters):
    """Parameters whose arrays in shared memory are in our hands, whatever happens to the sender."""

    arrays: NDArrays = field(default_factory=list)


@dataclass
class Lent(Parameters):
    """Parameters that point at a file of ours, theirs until this object goes."""

    file: shared_memory.File


OUTBOX = shared_memory.Outbox()


def hold(parameters: Parameters) -> Parameters:
    """Take hold of what a message only points at, where it does; errors as for `fetched`."""
    if len(parameters.tensors) != 1:
        return parameters
    return Held(parameters.tensors, parameters.tensor_type, fetched([_first(parameters)]))


def _first(parameters: Parameters) -> np.ndarray:
    """The header of a message, uint8.

    Not by `numpy.load`, which parses Python source: CPython 3.11 does not survive that in two
    threads at once, and replies are taken by many.
    """
    raw = parameters.tensors[0]
    if raw[:6] != np.lib.format.MAGIC_PREFIX:
        raise UserError("payload cannot be read: its header is no array")
    start = 10 + int.from_bytes(raw[8:10], "little")
    return np.frombuffer(raw[start:] or b"\0", np.uint8)  # NumPy takes no empty buffer


def to_parameters(groups: Groups, layout: str, by_reference: bool = False) -> Parameters:
    """Groups as Flower's serialised Parameters, or as such that point at shared memory.

    The memory is let go with the object returned, so keep that until all receivers are done.
    """
    if not by_reference:
        return ndarrays_to_parameters(pack(groups, layout))
    file = OUTBOX.file()
    sent = ndarrays_to_parameters(pack(groups, layout, file.write))
    lent = Lent(sent.tensors, sent.tensor_type, file)
    weakref.finalize(lent, OUTBOX.take_back, file)
    return lent


def may_be_read_late(parameters: Parameters) -> None:
    """Say that a receiver did not answer, and could still look at what it was sent."""
    if isinstance(parameters, Lent):
        parameters.file.reusable = False


def from_parameters(parameters: Parameters, layout: str) -> Groups:
    """Groups out of Flower's serialised Parameters; UserError as for `unpack`.

    Shared memory is looked into only after `hold`: a stranger could point anywhere.
    """
    arrays = (
        parameters.arrays if isinstance(parameters, Held) else list(map(read, parameters.tensors))
    )
    return unpack(arrays, layout)


def points(parameters: Parameters) -> bool:
    """Whether a message is one of ours that points at shared memory."""
    try:
        return len(parameters.tensors) == 1 and is_shared([_first(parameters)])
    except UserError:
        return False


def nbytes(parameters: Parameters) -> int:
    """Bytes of the serialised arrays, as they travel or, in shared memory, as they would."""
    whole = sum(len(tensor) for tensor in parameters.tensors)
    if len(parameters.tensors) != 1:
        return whole
    try:
        size = _decoded(_first(parameters)).get("size", whole)
    except UserError:
        return whole
    return size if type(size) is int and 0 <= size <= 2 * MESSAGE_LIMIT else whole
