"""The device's turnstile: one run of a model at a time, the most urgent first, and a count of what is owed."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from upwell.shared.errors import DeadlineExceeded


class Lane:
    """Mutual exclusion by earliest deadline first (Liu & Layland 1973), run in the callers' own threads.

    A caller whose turn has not come when it could no longer finish leaves with `DeadlineExceeded`, having cost nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._busy = False
        self._promised = 0

    @property
    def ahead(self) -> int:
        """Runs in progress or waiting."""
        return len(self._waiting) + self._busy

    @property
    def promised(self) -> int:
        """Requests that wait for the cloud and will run here if it fails them."""
        return self._promised

    @contextmanager
    def turn(self, deadline_s: float) -> Iterator[None]:
        """Hold the lane; `deadline_s` is when the turn is worth nothing any more. Raises `DeadlineExceeded`."""
        self._enter(deadline_s)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def promise(self) -> Iterator[None]:
        """Count a request that may need a turn later."""
        with self._lock:
            self._promised += 1
        try:
            yield
        finally:
            with self._lock:
                self._promised -= 1

    def _enter(self, deadline_s: float) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            gate = threading.Lock()
            gate.acquire()
            ticket = (deadline_s, next(self._order), gate)
            heapq.heappush(self._waiting, ticket)
        timeout_s = min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX)
        if gate.acquire(timeout=timeout_s):
            return
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                heapq.heapify(self._waiting)
                raise DeadlineExceeded("the device was busy until the deadline")
        # The turn came in the moment between the timeout and the lock: it is ours to pass on.
        self._leave()
        raise DeadlineExceeded("the device was busy until the deadline")

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].release()
            else:
                self._busy = False
