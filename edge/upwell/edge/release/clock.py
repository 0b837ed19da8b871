"""Whether this device knows what time it is: what expires is only worth checking then."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_SYNCHRONISED = Path("/run/systemd/timesync/synchronized")
"""systemd-timesyncd makes it at its first synchronisation since the start."""
_TIME_ERROR = 5


def is_synchronised() -> bool:
    """Whether something has set the clock by others since the machine was started (NTP, PTP, GPS).

    The kernel knows it on Linux (`adjtimex(2)`, whose TIME_ERROR means that the clock is not synchronised). Elsewhere
    the operating system sets it, and it counts as synchronised.
    """
    if not sys.platform.startswith("linux"):
        return True
    if _SYNCHRONISED.exists():
        return True
    try:
        state = int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(os.sysconf("SC_PAGESIZE"))))
    except (OSError, AttributeError, ValueError):
        return False
    return 0 <= state < _TIME_ERROR
