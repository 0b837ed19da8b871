"""Limits how often wrong tokens may be tried: guessing 256 bits is hopeless, and need not cost database searches."""

from __future__ import annotations

import threading
from collections import OrderedDict

MOST_FAILURES = 20
WINDOW_S = 60.0
_MOST_ADDRESSES = 10_000


class Attempts:
    """Failures by address in the last minute. Thread-safe; time is an argument (monotonic)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """How long the address must wait before it may try again; 0 if it need not."""
        with self._lock:
            times = [one for one in self._failures.get(address, ()) if now_s - one < WINDOW_S]
        return WINDOW_S - (now_s - times[-MOST_FAILURES]) if len(times) >= MOST_FAILURES else 0.0

    def failed(self, address: str, now_s: float) -> None:
        """Count a failure."""
        with self._lock:
            times = self._failures.setdefault(address, [])
            times[:] = [one for one in times[1 - MOST_FAILURES :] if now_s - one < WINDOW_S] + [now_s]
            self._failures.move_to_end(address)
            if len(self._failures) > _MOST_ADDRESSES:
                self._failures.popitem(last=False)
