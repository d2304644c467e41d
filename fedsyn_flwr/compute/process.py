"""Settings of the process: memory that is kept, a number of threads that is fixed."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
ONE_GIB = 2**30


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep freed memory instead of returning it to the kernel.

    A training step allocates and frees the same activations every time; by default glibc gives
    large blocks back and the kernel faults every page in again. Elsewhere (musl, macOS) this does
    nothing.

    Returns
    -------
    bool
        Whether malloc took the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, ONE_GIB)) and bool(mallopt(M_TRIM_THRESHOLD, ONE_GIB))


def many_open_files() -> None:
    """Raise this process's limit of open files to what the system allows it."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Inside, PyTorch has so many CPU threads: how work is split over them decides its last bits.

    0 leaves their number alone.

    For what the server computes and the run depends on; a server's own number is its machine's.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
