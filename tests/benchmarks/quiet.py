"""Timings on a machine that other programs use too: wait until they rest, and measure again what they disturbed.

What counts is how much of the processors others took meanwhile, never how long something took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MOST = 0.10
"""Processors that others may take."""
LOOK_S, CALM_LOOKS = 0.25, 3

_PROC = Path("/proc")
_BUSY = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal in /proc/stat
_GROUP, _TIMES = 2, slice(11, 15)  # behind the name in /proc/PID/stat: the group; user and system, children's too

T = TypeVar("T")


class Quiet:
    """Keeps measurements apart from what else runs, for `patience_s` seconds of waiting and repeating altogether.

    After that everything is taken as it comes: `disturbed` counts what was. Where the system does not tell (it is not
    Linux), nothing is ever held to be disturbed. The processes of this one's group are its own.
    """

    def __init__(self, patience_s: float) -> None:
        self.repeated = self.disturbed = 0
        self._patience_s = patience_s

    def wait(self) -> None:
        """Return when others have been resting for a moment, or the patience is at its end."""
        calm = 0
        while calm < CALM_LOOKS and self._patience_s > 0:
            look = _Look()
            time.sleep(LOOK_S)
            calm = calm + 1 if look.others() <= MOST else 0
            self._patience_s -= LOOK_S

    def measured(self, call: Callable[[], T]) -> T:
        """What `call` gives, called again while others disturb it."""
        while True:
            look = _Look()
            made = call()
            if look.others() <= MOST:
                return made
            if self._patience_s <= 0:
                self.disturbed += 1
                return made
            self.repeated += 1
            self._patience_s -= time.monotonic() - look.at_s
            self.wait()

    def told(self) -> str:
        """A sentence."""
        if self.disturbed:
            return f"Other programs ran meanwhile: {self.disturbed} measurements are disturbed."
        return f"Nothing else ran meanwhile ({self.repeated} measurements were repeated for that)."


class _Look:
    """An instant, and the processor time that all programs and our own had taken by then."""

    def __init__(self) -> None:
        self.at_s = time.monotonic()
        self._all_s, self._own_s = _all_s(), _own_s()

    def others(self) -> float:
        """Processors that others have taken since."""
        spent_s = (_all_s() - self._all_s) - (_own_s() - self._own_s)
        return spent_s / (time.monotonic() - self.at_s)


def _all_s() -> float:
    try:
        fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(int(fields[index]) for index in _BUSY) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    ticks = 0
    for process in _PROC.glob("[0-9]*/stat"):
        try:
            fields = process.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended; its parent tells its time
        if int(fields[_GROUP]) == os.getpgrp():
            ticks += sum(map(int, fields[_TIMES]))
    return ticks / os.sysconf("SC_CLK_TCK")
