"""What this process takes of the machine's memory, and what it gives back."""

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
    """Memory of this process, shared pages included; 0 where that cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def heap_trimmer() -> Callable[[], None] | None:
    """What gives the system the memory back that was freed and is kept for the next time; None without glibc.

    It takes milliseconds, in which allocations of other threads may wait, and later ones cost page faults again.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return lambda: trim(ctypes.c_size_t(0))


def map_large_blocks() -> None:
    """Have each block of 128 KiB or more of this process mapped by itself, so that it goes back when it is freed.

    glibc begins like that, but raises its limit, to at most 32 MiB, with each such block that is freed (mallopt(3)):
    pictures come to lie in the heaps of the threads, between small blocks that outlive them, and the heaps grow again
    and again. A block costs a call of the system, and a page fault for each 4 KiB. Nothing happens without glibc.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
