"""The memory of this process: how much it has, and how large blocks are returned."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_MMAP_THRESHOLD = -3
"""glibc's parameter for the size from which a block is mapped separately (malloc.h)."""
_LARGE_BYTES = 128 * 1024


def resident_bytes() -> int:
    """Resident memory of this process in bytes, shared pages included; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def heap_trimmer() -> Callable[[], None] | None:
    """A function that returns freed memory, which glibc keeps for reuse, to the system; None without glibc.

    It takes milliseconds, during which other threads may wait for allocations, and later allocations cost page faults.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return lambda: trim(ctypes.c_size_t(0))


def map_large_blocks() -> None:
    """Map each block of 128 KiB or more separately, so that it is returned to the system when it is freed.

    glibc starts like that, but raises its threshold, up to 32 MiB, whenever such a block is freed (mallopt(3)).
    Pictures then end up in the heaps of the threads, between small blocks that outlive them, and the heaps keep
    growing. The price is a system call per block, and a page fault per 4 KiB. Does nothing without glibc.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
