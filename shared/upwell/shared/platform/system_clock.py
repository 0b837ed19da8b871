"""The clocks of the system: whether the wall clock has been set, which boot it is, and the time since then."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

_SYNCHRONISED = Path("/run/systemd/timesync/synchronized")
"""Created by systemd-timesyncd at the first synchronisation after boot."""
_TIME_ERROR = 5


def boot_id() -> str:
    """The kernel's name of this boot, which needs no clock; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def uptime_s() -> float:
    """Seconds since the boot. On Linux time in suspend counts, as it does not for `time.monotonic`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def is_synchronised() -> bool:
    """Whether the clock was synchronised since boot (NTP, PTP, GPS).

    On Linux the kernel knows (`adjtimex(2)` returns TIME_ERROR while the clock is not synchronised). Elsewhere the
    operating system sets the clock, and it counts as synchronised.
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
