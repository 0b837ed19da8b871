"""Gives memory back after the large requests that took it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.memory import heap_trimmer, resident_bytes

_LOOK_S = 1.0
_GROWTH, _HELP = 1.05, 1.02
_LONGEST_S = 60.0
_ENDING_S = 5.0


class MemoryTrimmer:
    """A thread that looks each second whether memory has grown, and gives back what is free of it.

    glibc keeps what was freed: a service that was once sent many large messages, or bombs, would stay at several times
    its size for ever. It is done where `is_idle`, or has not been for a minute, while the process has 5 % more than
    it had at the least; less and less often where that does not help. Nothing is done where glibc is not.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        trim = heap_trimmer()
        if trim is not None:
            self._thread = BackgroundThread("memory-trim", partial(self._run, trim), self._ending.is_set)
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_ENDING_S)

    def _run(self, trim: Callable[[], None]) -> None:
        least = resident_bytes()
        pause_s, busy_s = _LOOK_S, 0.0
        while not self._ending.wait(pause_s):
            before = resident_bytes()
            least = min(least, before)
            if before <= _GROWTH * least:
                pause_s, busy_s = _LOOK_S, 0.0
            elif self._is_idle() or busy_s >= _LONGEST_S:
                trim()
                has_helped = resident_bytes() < before / _HELP
                pause_s, busy_s = (_LOOK_S if has_helped else min(2 * pause_s, _LONGEST_S)), 0.0
            else:
                busy_s += pause_s
