"""The clocks of the system: whether the wall clock has been set, which boot it is, and the time since then; and a
clock for what is stored, which never goes backward.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

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


class ForwardClock:
    """A clock in seconds that never goes backward and ignores changes of the wall clock while the process runs.

    `now_s = start_s + (monotonic_s − monotonic at the start)` where `start_s` is the wall clock's time at the start, or
    the latest time on disk if the wall clock was set back before that, or had not been set when that was stored. Ages
    and pauses use it: a device without a battery boots in 1970, and when it learns the time nothing may be dropped as
    old, or wait for decades.
    """

    FIRST_S: ClassVar[float] = 1_577_836_800.0
    """A clock that shows an earlier time than the beginning of 2020 was never set."""

    def __init__(self, latest_s: float, wall_s: float, monotonic_s: float) -> None:
        was_unset = 0.0 < latest_s < self.FIRST_S <= wall_s
        self._offset_s = (latest_s if was_unset else max(latest_s, wall_s)) - monotonic_s

    def at(self, monotonic_s: float) -> float:
        """This clock's time for a monotonic time."""
        return self._offset_s + monotonic_s
