"""Threads that run beside the requests until the process ends, and are restarted if they fail."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Pause before a failed loop is restarted; doubled each time, reset after a minute without failure."""

_CALM_S = 60.0

_log = logging.getLogger(__name__)
_restarts: Counter[str] = Counter()
_lock = threading.Lock()


class BackgroundThread(threading.Thread):
    """A daemon thread that runs `loop` until it returns, or until it has failed and `is_over` returns True.

    An exception is a defect, but the thread's work (spooling, recording, reloading tokens) must go on. The exception is
    logged with its traceback but without its text, which may quote a request, and counted by `name`.
    """

    def __init__(self, name: str, loop: Callable[[], None], is_over: Callable[[], bool] = lambda: False) -> None:
        super().__init__(name=name, daemon=True)
        self._loop = loop
        self._is_over = is_over

    def try_start(self) -> bool:
        """Start it; False if the process can have no more threads now, for which no request should fail."""
        try:
            self.start()
        except RuntimeError as error:
            _log.warning("thread %s: %s", self.name, error)
            return False
        return True

    def run(self) -> None:
        """Run the loop, again after each failure."""
        pause_s = FIRST_PAUSE_S
        with _lock:
            _restarts[self.name] += 0  # so that the metric exists from the first scrape on
        while True:
            began_s = time.monotonic()
            try:
                self._loop()
                return
            except Exception as error:  # noqa: BLE001 (the boundary of a thread that must go on)
                with _lock:
                    _restarts[self.name] += 1
                place = "".join(traceback.format_tb(error.__traceback__))
                kind = type(error).__name__
                _log.error("thread %s failed with %s and is restarted; it failed at\n%s", self.name, kind, place)
            if time.monotonic() - began_s > _CALM_S:
                pause_s = FIRST_PAUSE_S
            until_s = time.monotonic() + pause_s
            while time.monotonic() < until_s:
                if self._is_over():
                    return
                time.sleep(FIRST_PAUSE_S / 2)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def restarts() -> Mapping[str, int]:
    """How often each background thread of this process was restarted, by name."""
    with _lock:
        return dict(_restarts)
