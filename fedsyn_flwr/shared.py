"""Arrays between processes of one machine, by reference: shared memory without a name.

A sender keeps its arrays in an anonymous file (memfd) and sends the file's place; a receiver opens
it under ``/proc/<pid>/fd`` and maps it. So there is nothing to unlink: the memory ends with the
last process that holds it, after a crash too, and no other run can come across it.

A file begins with a page of its own: one byte that says whether it may be written again, and a
token, by which a receiver knows the file that was meant.
"""

import math
import mmap
import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np

HEAD = mmap.ALLOCATIONGRANULARITY
ALIGNMENT = 64
TOKEN = slice(1, 17)
FREE, OFFERED, TAKEN = 0, 1, 2


class Place(TypedDict):
    """Where arrays lie, as JSON: dtype, shape and offset of each in a process's file."""

    pid: int
    fd: int
    token: str
    slot: bool
    arrays: list[tuple[str, list[int], int]]


Share = Callable[[Sequence[np.ndarray]], "Place | None"]


class SenderGone(Exception):  # noqa: N818 - not an error of the program
    """The process that holds the memory has ended, or dropped it."""


def supported() -> bool:
    """Whether this system has such memory (Linux)."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


@dataclass
class File:
    """An anonymous file of this process."""

    fd: int = field(default_factory=lambda: os.memfd_create("fedsyn-flwr"))
    token: bytes = field(default_factory=lambda: os.urandom(16))

    def __post_init__(self) -> None:
        os.pwrite(self.fd, bytes([FREE]) + self.token, 0)
        os.truncate(self.fd, HEAD)
        self._close = weakref.finalize(self, os.close, self.fd)

    @property
    def use(self) -> int:
        """FREE, OFFERED or TAKEN."""
        return os.pread(self.fd, 1, 0)[0]

    def write(self, arrays: Sequence[np.ndarray], slot: bool = False) -> Place | None:
        """Put arrays into it, over what it holds; None if there is no memory for them."""
        try:
            places = self._fill(arrays)
        except OSError:
            return None
        os.pwrite(self.fd, bytes([OFFERED if slot else FREE]), 0)
        token = self.token.hex()
        return {"pid": os.getpid(), "fd": self.fd, "token": token, "slot": slot, "arrays": places}

    def _fill(self, arrays: Sequence[np.ndarray]) -> list[tuple[str, list[int], int]]:
        places, offset = [], HEAD
        for array in arrays:
            places.append((array.dtype.str, list(array.shape), offset))
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            while len(content):
                done = os.pwrite(self.fd, content, offset)
                content, offset = content[done:], offset + done
            offset += -offset % ALIGNMENT
        os.truncate(self.fd, max(offset, os.fstat(self.fd).st_size))
        return places

    def close(self) -> None:
        """Let it go, now and not when this object goes; who has mapped it keeps it."""
        self._close()


class Slots:
    """The files in which a process answers, written again as soon as the receiver is done.

    Pages that are there already cost nothing but the copy.
    """

    def __init__(self) -> None:
        self.files: list[tuple[File, Hashable]] = []

    def write(self, arrays: Sequence[np.ndarray], message: Hashable) -> Place | None:
        """Put an answer into a free file; None if there is no memory for it.

        Parameters
        ----------
        arrays : sequence of ndarray
            The answer.
        message : hashable
            Which round and phase it belongs to: what was offered in another one and not taken
            will not be asked for again.
        """
        for i, (file, written_for) in enumerate(self.files):
            use = file.use
            if use == FREE or (use == OFFERED and written_for != message):
                del self.files[i]
                break
        else:
            file = File()
        self.files.append((file, message))
        return file.write(arrays, slot=True)


class Lease(mmap.mmap):
    """A map of a sender's file; where it is a slot, it is given back with the last view."""

    slot = False

    def __del__(self) -> None:
        if self.slot:
            self[0] = FREE


def opened(place: Place) -> list[np.ndarray]:
    """Views of the arrays at a place: writable, and no other receiver sees what is written.

    Raises
    ------
    SenderGone
        If they are not there any more.
    """
    try:
        flags = os.O_RDWR if place["slot"] else os.O_RDONLY
        fd = os.open(f"/proc/{place['pid']}/fd/{place['fd']}", flags | os.O_CLOEXEC)
    except OSError as error:
        raise SenderGone(f"process {place['pid']}: {error.strerror}") from None
    try:
        if os.pread(fd, 16, TOKEN.start) != bytes.fromhex(place["token"]):
            raise SenderGone(f"process {place['pid']} holds something else there")
        access = mmap.ACCESS_WRITE if place["slot"] else mmap.ACCESS_COPY
        lease = Lease(fd, 0, access=access)
    finally:
        os.close(fd)
    if place["slot"]:
        lease[0], lease.slot = TAKEN, True
    return [
        np.frombuffer(lease, dtype, count, offset).reshape(shape)
        if (count := math.prod(shape))
        else np.empty(shape, dtype)
        for dtype, shape, offset in place["arrays"]
    ]
