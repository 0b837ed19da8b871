"""Limits on pixels: of the pictures of one request, and in work at once in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_MAX_PIXELS = 64_000_000
"""Maximum total pixels of the pictures of one request."""

AT_ONCE = 2 * DEFAULT_MAX_PIXELS
"""Limit on pixels in work at once; a pixel takes up to twelve bytes: decoded, copied and scaled."""

_SMALL = 1 << 18
"""Requests with fewer pixels never wait, since they take only a few megabytes per thread."""
_MOST_PASSES = 32
"""How many that fit may pass the one that has waited longest; without a limit, a large one might wait for ever."""


class PixelBudget:
    """Limits the pixels that are being processed to `at_once`; a larger piece runs alone. Thread-safe."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._held = 0
        self._passed: dict[object, int] = {}  # of each that waits, oldest first: how many have passed it
        self._change = threading.Condition()

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for that many pixels, and hold it for the block."""
        if pixels < _SMALL:
            yield
            return
        turn = object()
        with self._change:
            self._passed[turn] = 0
            try:
                self._change.wait_for(lambda: self._may_begin(turn, pixels))
                self._passed[next(iter(self._passed))] += 1
                self._held += pixels
            finally:
                del self._passed[turn]
                self._change.notify_all()  # those that may not pass it
        try:
            yield
        finally:
            with self._change:
                self._held -= pixels
                self._change.notify_all()

    def _may_begin(self, turn: object, pixels: int) -> bool:
        oldest = next(iter(self._passed))
        has_room = self._held == 0 or self._held + pixels <= self._at_once
        return has_room and (oldest is turn or self._passed[oldest] < _MOST_PASSES)


BUDGET = PixelBudget(AT_ONCE)
"""The limit of this process."""
