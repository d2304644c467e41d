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
import threading
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


ArrayPlace = tuple[str, list[int], int]


class Place(TypedDict):
    """Where arrays lie, as JSON: dtype, shape and offset of each in a process's file.

    ``end`` is the offset after the last of them.
    """

    pid: int
    fd: int
    token: str
    slot: bool
    end: int
    arrays: list[ArrayPlace]


Share = Callable[[Sequence[np.ndarray]], "Place | None"]


class SenderGone(Exception):  # noqa: N818 - not an error of the program
    """The process that holds the memory has ended, or dropped it."""


def supported() -> bool:
    """Whether this system has such memory (Linux)."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


@dataclass
class File:
    """An anonymous file of this process, mapped for as long as this object is there."""

    fd: int = field(default_factory=lambda: os.memfd_create("fedsyn-flwr"))
    reusable: bool = True

    def __post_init__(self) -> None:
        self._close = weakref.finalize(self, os.close, self.fd)
        self._make_room(HEAD)
        self.rename()

    def rename(self) -> None:
        """Give it another token: whoever comes late for what it held will not take it for that."""
        self.token = os.urandom(16)
        self._pages[TOKEN] = np.frombuffer(self.token, np.uint8)

    @property
    def use(self) -> int:
        """FREE, OFFERED or TAKEN."""
        return int(self._pages[0])

    def room(self, like: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Arrays like these, where `write` would put such; None if there is no memory for them."""
        places, end = _laid_out(like)
        try:
            self._make_room(end)
        except OSError:
            return None
        return [_view(self._pages, place) for place in places]

    def write(self, arrays: Sequence[np.ndarray], slot: bool = False) -> Place | None:
        """Put arrays into it, over what it holds; None if there is no memory for them.

        What is in its `room` already is not copied.
        """
        places, end = _laid_out(arrays)
        contents = {}
        for array, (_, _, start) in zip(arrays, places, strict=True):
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if content.ctypes.data != self._pages.ctypes.data + start:
                lies_here = np.may_share_memory(content, self._pages)
                contents[start] = content.copy() if lies_here else content
        try:
            self._make_room(end)
        except OSError:
            return None
        for start, content in contents.items():
            self._pages[start : start + len(content)] = content
        self._pages[0] = OFFERED if slot else FREE
        return {
            "pid": os.getpid(),
            "fd": self.fd,
            "token": self.token.hex(),
            "slot": slot,
            "end": end,
            "arrays": places,
        }

    def _make_room(self, size: int) -> None:
        """Grow to at least so many bytes, with memory behind each; OSError if there is none."""
        if size > os.fstat(self.fd).st_size:
            os.posix_fallocate(self.fd, 0, size)
            self._pages = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)

    def close(self) -> None:
        """Let it go, now and not when this object goes; who has mapped it keeps it."""
        self._close()


class Outbox:
    """Files for what a process sends to many: one that was let go is kept and written again.

    Pages that are there already cost nothing but the copy.
    """

    def __init__(self) -> None:
        self.spare: list[File] = []

    def file(self) -> File:
        """A file that nobody reads."""
        if not self.spare:
            return File()
        file = self.spare.pop()
        file.rename()
        return file

    def take_back(self, file: File) -> None:
        """Keep one file for the next message; let others go, and what may still be read."""
        if file.reusable and not self.spare:
            self.spare.append(file)
        else:
            file.close()


class Slots:
    """The files in which a process answers, written again as soon as the receiver is done.

    Pages that are there already cost nothing but the copy.
    """

    def __init__(self) -> None:
        self.files: list[tuple[File, Hashable]] = []
        self.lent: File | None = None

    def lend(self, like: Sequence[np.ndarray], message: Hashable) -> list[np.ndarray] | None:
        """Room for the first arrays of the next answer, to be made there; None without memory.

        Parameters
        ----------
        like : sequence of ndarray
            Their types and shapes.
        message : hashable
            As for `write`.
        """
        self.lent = self.lent or self._free(message)
        return self.lent.room(like)

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
        file, self.lent = self.lent or self._free(message), None
        self.files.append((file, message))
        return file.write(arrays, slot=True)

    def _free(self, message: Hashable) -> File:
        for i, (file, written_for) in enumerate(self.files):
            use = file.use
            if use == FREE or (use == OFFERED and written_for != message):
                del self.files[i]
                return file
        return File()


class Lease:
    """A hold on a slot's content: with the last view of the array made of it the slot is free.

    Parameters
    ----------
    pages : uint8 (n,)
        The slot's file, mapped.
    """

    def __init__(self, pages: np.ndarray) -> None:
        self.pages = pages
        self.__array_interface__ = pages.__array_interface__
        pages[0] = TAKEN

    def __del__(self) -> None:
        self.pages[0] = FREE


def opened(place: Place) -> list[np.ndarray]:
    """Views of the arrays at a place; those of a message, which others see as well, are read-only.

    A message's are good until it is answered: after that its memory may be written again.

    Raises
    ------
    SenderGone
        If they are not there any more.
    """
    slot = place["slot"]
    pages = np.asarray(Lease(_SLOTS.pages(place))) if slot else _MESSAGES.pages(place)
    return [_view(pages, array) for array in place["arrays"]]


def _laid_out(arrays: Sequence[np.ndarray]) -> tuple[list[ArrayPlace], int]:
    """Where arrays lie in a file, one after the other, and where the last ends."""
    places: list[ArrayPlace] = []
    end = HEAD
    for array in arrays:
        places.append((array.dtype.str, list(array.shape), end))
        end += array.nbytes + -array.nbytes % ALIGNMENT
    return places, end


def _view(pages: np.ndarray, place: ArrayPlace) -> np.ndarray:
    dtype, shape, start = place
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return pages[start : start + size].view(dtype).reshape(shape)


def _mapped(place: Place) -> np.ndarray:
    """A sender's file, uint8: a slot to be marked as taken and free, else read-only."""
    try:
        flags = os.O_RDWR if place["slot"] else os.O_RDONLY
        fd = os.open(_link(place), flags | os.O_CLOEXEC)
    except OSError as error:
        raise SenderGone(f"process {place['pid']}: {error.strerror}") from None
    try:
        access = mmap.ACCESS_WRITE if place["slot"] else mmap.ACCESS_READ
        pages = np.frombuffer(mmap.mmap(fd, 0, access=access), np.uint8)
    finally:
        os.close(fd)
    if not _is_meant(pages, place):
        raise SenderGone(f"process {place['pid']} holds something else there")
    return pages


def _is_meant(pages: np.ndarray, place: Place) -> bool:
    """Whether it is the file, as large as it is now, that the sender wrote of."""
    return place["end"] <= len(pages) and pages[TOKEN].tobytes() == bytes.fromhex(place["token"])


def _link(place: Place) -> str:
    return f"/proc/{place['pid']}/fd/{place['fd']}"


class _Maps:
    """Files this process has read from, mapped still: to map one costs as much as to read it.

    Parameters
    ----------
    most : int
        How many are kept, besides those in use.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[str, np.ndarray] = {}  # link → pages, what was asked for last at the end
        self.lock = threading.Lock()

    def pages(self, place: Place) -> np.ndarray:
        """A sender's file."""
        link = _link(place)
        with self.lock:
            pages = self.known.pop(link, None)
            if pages is None or not _is_meant(pages, place):
                self.forget_gone()
                pages = _mapped(place)
            self.known[link] = pages
            if len(self.known) > self.most:
                del self.known[next(iter(self.known))]
        return pages

    def forget_gone(self) -> None:
        """Let go of files whose owner has ended or dropped them."""
        self.known = {link: pages for link, pages in self.known.items() if os.path.lexists(link)}


_SLOTS = _Maps(most=1024)
_MESSAGES = _Maps(most=2)  # a server writes the next one while it holds the last
