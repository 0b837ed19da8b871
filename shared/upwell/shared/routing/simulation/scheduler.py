"""The device, simulated: one run at a time, the most urgent first, with slots promised to those who wait for the cloud.

The order and the promises are those of the agent's own scheduler. What differs: a run that would reach into a promised
slot is taken on here, and the fallback behind it ends later by at most that run; the agent refuses it.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from upwell.shared.routing.policy.settings import RANKS, Priority
from upwell.shared.routing.simulation.kernel import Event, Kernel, Process

_ROUNDING_S = 1e-9
_Turn: TypeAlias = tuple[int, float, int, float, Event]
"""Rank (negative), deadline, order of arrival, duration, and what lets it begin."""


class SimulatedScheduler:
    """One accelerator, shared by all models, by earliest deadline first (Liu & Layland 1973) and without preemption.

    A higher priority goes first.

    A run is taken on only if it will be in time and makes nobody late who was taken on before; one that stands in for
    the cloud (`is_owed`) always is. The agent predicts how long runs take, here it is known.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._order = itertools.count()
        self._waiting: list[_Turn] = []
        self._busy = False
        self._free_s = -math.inf
        self._promises: list[tuple[float, float]] = []

    @property
    def ahead(self) -> int:
        """Runs that are under way or wait."""
        return len(self._waiting) + self._busy

    def ahead_of(self, deadline_s: float, priority: Priority = "normal") -> int:
        """Runs that one with this deadline would wait for."""
        return sum(turn[:2] <= (-RANKS[priority], deadline_s) for turn in self._waiting) + self._busy

    def run(
        self, duration_s: float, deadline_s: float, priority: Priority = "normal", *, is_owed: bool = False
    ) -> Process[bool]:
        """Wait for a turn and run; False, at once, where there is none to be had."""
        turn = (-RANKS[priority], deadline_s, next(self._order), duration_s, Event())
        if self._busy:
            if not is_owed and not self._all_in_time(turn):
                return False
            heapq.heappush(self._waiting, turn)
            yield turn[4], deadline_s
            if not turn[4].is_set:
                self._waiting.remove(turn)
                heapq.heapify(self._waiting)
                return False
        self._busy = True
        self._free_s = self._kernel.now_s + duration_s
        yield None, self._free_s
        if self._waiting:
            self._kernel.fire(heapq.heappop(self._waiting)[4])
        else:
            self._busy = False
        return True

    def _all_in_time(self, new: _Turn) -> bool:
        ends_s = self._free_s
        for _, deadline_s, _, duration_s, _ in sorted([*self._waiting, new], key=lambda turn: turn[:3]):
            ends_s += duration_s
            if ends_s > deadline_s + _ROUNDING_S:
                return False
        return True

    def promise(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Keep a slot for a request that may need a turn later, as near to [start_s, end_s] as others leave room."""
        if self._promises:
            start_s -= end_s - start_s
        slot = _latest_gap(self._promises, start_s, end_s)
        bisect.insort(self._promises, slot)
        return slot

    def release(self, slot: tuple[float, float]) -> None:
        """Give a promised slot back."""
        self._promises.remove(slot)


def _latest_gap(taken: Sequence[tuple[float, float]], start_s: float, end_s: float) -> tuple[float, float]:
    """The latest interval as long as [start_s, end_s] that ends by `end_s` and overlaps none of `taken` (in order)."""
    length_s = end_s - start_s
    for taken_start_s, taken_end_s in reversed(taken):
        if taken_end_s <= end_s - length_s:
            break
        if taken_start_s < end_s:
            end_s = taken_start_s
    return (end_s - length_s, end_s)
