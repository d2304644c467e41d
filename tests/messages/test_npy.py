"""Arrays from strangers: as NumPy writes them, or one line."""

import contextlib
import io
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.npy import TYPES, read


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def headed(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def shaped(shape: str, body: bytes = b"") -> bytes:
    return headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}", body)


SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(st.sampled_from(sorted(TYPES)).flatmap(lambda t: arrays.arrays(np.dtype(t), SHAPES)))
def test_it_reads_what_numpy_writes(array: np.ndarray) -> None:
    for given_ in (array, np.asfortranarray(array), array.T):
        found = read(saved(given_))
        assert found.dtype == given_.dtype
        np.testing.assert_array_equal(found, given_)
        assert found.flags.writeable


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def a_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", "y")
    return file.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x93NUMPY",
        b"PK\x03\x04",
        npz(),
        a_zip(),
        saved(np.array([object()]), allow_pickle=True),
        saved(np.array(["text"])),
        saved(np.array([b"bytes"])),
        saved(np.zeros(2, complex)),
        saved(np.zeros(2, "M8[s]")),
        saved(np.zeros(2, [("a", "f4")])),
        saved(np.zeros(2, ">f4")),
        shaped("(1000000000000,)"),
        shaped("(100000000000000000000000,)"),
        shaped("(-1,)"),
        shaped("(5,"),
        shaped("(" + "-" * 9000 + "1,)"),
        shaped("(2,)", b"\0" * 4),
        shaped("(2,)", b"\0" * 12),
        shaped("(0, 1000000000000)", b"\0"),
        headed("{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (), }"),
        headed("[" * 60_000),
        b"\x93NUMPY\x02\x00" + saved(np.zeros(2))[8:],
    ],
)
def test_anything_else_is_one_line(raw: bytes) -> None:
    with pytest.raises(UserError, match="payload cannot be read"):
        read(raw)


@settings(max_examples=500)
@given(st.data())
def test_a_changed_byte_is_an_array_or_one_line(data: st.DataObject) -> None:
    raw = bytearray(saved(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        assert read(bytes(raw)).nbytes == 24
