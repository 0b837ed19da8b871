"""The device's turnstile: one run of a model at a time, the most urgent first, and a count of what is owed."""

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
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
        self._promises: list[tuple[float, float]] = []  # disjoint, in order

    @property
    def ahead(self) -> int:
        """Runs in progress or waiting."""
        return len(self._waiting) + self._busy

    @contextmanager
    def turn(self, deadline_s: float) -> Iterator[None]:
        """Hold the lane; `deadline_s` is when the turn is worth nothing any more. Raises `DeadlineExceeded`."""
        self._enter(deadline_s)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def promise(self, start_s: float, end_s: float) -> Iterator[float]:
        """Keep a slot for a request that may need a turn later, and say when it must begin.

        Wanted is [start_s, end_s]; where other promises lie there already, the slot moves to the latest gap before it,
        so that all who wait for the same silent cloud can fall back in time, one after the other. Such a slot is twice
        as long as wanted: what runs slower than predicted would add up from slot to slot.
        """
        with self._lock:
            if self._promises:
                start_s -= end_s - start_s
            slot = _latest_gap(self._promises, start_s, end_s)
            bisect.insort(self._promises, slot)
        try:
            yield slot[0]
        finally:
            with self._lock:
                self._promises.remove(slot)

    def _enter(self, deadline_s: float) -> None:
        ticket: tuple[float, int, threading.Lock] | None = None
        gate = threading.Lock()
        try:
            with self._lock:
                if not self._busy:
                    self._busy = True
                    return
                gate.acquire()
                heapq.heappush(self._waiting, ticket := (deadline_s, next(self._order), gate))
            timeout_s = min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX)
            admitted = gate.acquire(timeout=timeout_s)
        except BaseException:  # an interrupt of the main thread, say: the next in line must not wait for it
            if ticket is not None:
                self._withdraw(ticket)
            raise
        if not admitted:
            self._withdraw(ticket)
            raise DeadlineExceeded("the device was busy until the deadline")

    def _withdraw(self, ticket: tuple[float, int, threading.Lock]) -> None:
        """Stop waiting; a turn that came in that very moment is passed on."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                heapq.heapify(self._waiting)
                return
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].release()
            else:
                self._busy = False


def _latest_gap(taken: Sequence[tuple[float, float]], start_s: float, end_s: float) -> tuple[float, float]:
    """The latest interval as long as [start_s, end_s] that ends by `end_s` and overlaps none of `taken` (in order)."""
    length_s = end_s - start_s
    for taken_start_s, taken_end_s in reversed(taken):
        if taken_end_s <= end_s - length_s:
            break
        if taken_start_s < end_s:
            end_s = taken_start_s
    return (end_s - length_s, end_s)
