"""What this process takes of the machine's memory, and what it gives back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


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
