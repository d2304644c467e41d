"""NumPy's file format, read strictly: what a stranger sends is data, of a known kind and length.

`numpy.load` also takes zip archives and pickles, evaluates the header as Python source and
allocates what it is told to. Here a header is matched against the one form that `numpy.save`
writes, and the array must be exactly as long as what came.
"""

from __future__ import annotations

import math
import re

import numpy as np

from fedsyn_flwr.errors import UserError

TYPES = {"<f2", "<f4", "<f8", "<i8", "|u1", "|b1"}
HEADER_LIMIT = 1024  # bytes; NumPy's own are 118
HEADER = re.compile(
    rb"\{'descr': '([^']{1,8})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,15}, ?)*(?:\d{1,15})?)\), \} *\n"
)


def read(raw: bytes) -> np.ndarray:
    """The array of a ``.npy`` file's bytes, a copy.

    Raises
    ------
    UserError
        If it is not such a file, or of a type that no message of this app has.
    """
    start = 10 + int.from_bytes(raw[8:10], "little")
    if raw[:8] != np.lib.format.magic(1, 0) or start > HEADER_LIMIT:
        raise UserError("payload cannot be read: it is no array in NumPy's format, version 1")
    header = HEADER.fullmatch(raw[10:start])
    if header is None:
        raise UserError("payload cannot be read: the header of an array is not NumPy's")
    descr, fortran = header[1].decode("latin-1"), header[2] == b"True"
    if descr not in TYPES:
        raise UserError(f"payload cannot be read: an array of type {descr!r}")
    shape = tuple(int(length) for length in re.findall(rb"\d+", header[3]))
    dtype, found = np.dtype(descr), len(raw) - start
    if math.prod(shape) * dtype.itemsize != found:
        raise UserError(f"payload cannot be read: {found} bytes for an array {descr} {shape}")
    flat = np.frombuffer(raw, dtype, offset=start) if found else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C").copy()
