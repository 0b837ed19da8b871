"""What this process takes of the machine's memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Memory of this process, shared pages included; 0 where that cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
