"""Clients that have begun a request and keep a thread waiting for the rest: they must not have all of the threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

PATIENCE_S = 0.25
"""Before that nobody is broken off: the rest is on the way, as a rule in the same packet."""

_LOOK_EVERY_S = 0.05

T = TypeVar("T")


class SlowClientGuard(Generic[T]):
    """Those that are waited for. While more than `most` are, the ones waited for the longest are broken off, of the
    address that has the most of them first; so a slow upload is given up only where that many are under way.

    `address_of` names a client, `break_off` ends the wait from another thread. Any thread may call the methods, which
    are on the way of every request: single operations on a dictionary need no lock.
    """

    def __init__(self, most: int, address_of: Callable[[T], str], break_off: Callable[[T], object]) -> None:
        self._most = most
        self._address_of = address_of
        self._break_off = break_off
        self._waiting: dict[int, tuple[float, T]] = {}  # in the order of their beginning
        self._thinning = threading.Lock()

    def add(self, key: int, one: T) -> None:
        """Begin to wait for `one`, known by `key`."""
        self._waiting[key] = (time.monotonic(), one)
        if len(self._waiting) > self._most and self._thinning.acquire(blocking=False):
            threading.Thread(target=self._thin_out, name="oip-waiting", daemon=True).start()

    def remove(self, key: int) -> None:
        """Wait no more, whether it was broken off or not."""
        self._waiting.pop(key, None)

    def _thin_out(self) -> None:
        """Break off until few enough are left. The lock is held on entry."""
        try:
            while len(self._waiting) > self._most:
                self._break_off_late(len(self._waiting) - self._most)
                time.sleep(_LOOK_EVERY_S)
        finally:
            self._thinning.release()

    def _break_off_late(self, count: int) -> None:
        late_s = time.monotonic() - PATIENCE_S
        late = [(key, one) for key, (since_s, one) in list(self._waiting.items()) if since_s <= late_s]
        addresses = [self._address_of(one) for _, one in late]
        for _ in range(min(count, len(late))):
            ((worst, _),) = Counter(addresses).most_common(1)
            at = addresses.index(worst)
            addresses.pop(at)
            key, one = late.pop(at)
            if self._waiting.pop(key, None) is not None:  # the rest may have come meanwhile
                self._break_off(one)
