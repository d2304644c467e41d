"""What travels: named groups of arrays ⇄ Flower's list of NDArrays.

The first array is a header (JSON as uint8) that names the groups, their arrays and the layout of
the model, so a list is understood without outside knowledge and nothing is matched by position
alone.
"""

import json

import numpy as np
from flwr.common import (
    GRPC_MAX_MESSAGE_LENGTH,
    NDArrays,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)

from fedsyn_flwr.errors import UserError

Group = dict[str, np.ndarray]
Groups = dict[str, Group]

MESSAGE_LIMIT = GRPC_MAX_MESSAGE_LENGTH // 2
"""Bytes of the largest message, 1 GiB: half of what Flower and protobuf can carry, 2^31 - 1, for a
message is more than its arrays, and is in the memory of either side more than once."""


def is_finite(group: Group) -> bool:
    """Whether every number of a group's arrays is finite."""
    return all(np.isfinite(array).all() for array in group.values())


def shapes(group: Group) -> dict[str, tuple[int, ...]]:
    """Array name → shape."""
    return {name: array.shape for name, array in group.items()}


def pack(groups: Groups, layout: str) -> NDArrays:
    """Groups as a list of arrays: header first, then every group's arrays in order.

    Raises
    ------
    UserError
        If they are too much for one message.
    """
    check_size(groups)
    names = {group: list(arrays) for group, arrays in groups.items()}
    header = json.dumps({"layout": layout, "groups": names}).encode()
    flat = [array for arrays in groups.values() for array in arrays.values()]
    return [np.frombuffer(header, dtype=np.uint8), *flat]


def check_size(groups: Groups) -> None:
    """Refuse what is too much for one message, before any of it is copied or sent."""
    sizes = {name: sum(array.nbytes for array in group.values()) for name, group in groups.items()}
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
    try:
        header = json.loads(arrays[0].tobytes())
        names: dict[str, list[str]] = header["groups"]
    except (IndexError, ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise UserError("payload without a header: the sender is not this app") from None
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


def to_parameters(groups: Groups, layout: str) -> Parameters:
    """Groups as Flower's serialised Parameters."""
    return ndarrays_to_parameters(pack(groups, layout))


def from_parameters(parameters: Parameters, layout: str) -> Groups:
    """Groups out of Flower's serialised Parameters; UserError as for `unpack`."""
    try:
        arrays = parameters_to_ndarrays(parameters)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"payload cannot be read: {error}") from None
    return unpack(arrays, layout)


def nbytes(parameters: Parameters) -> int:
    """Bytes of the serialised arrays, as they travel."""
    return sum(len(tensor) for tensor in parameters.tensors)
