"""Simulated time: processes that wait for events or times, and the order in which they continue."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Event:
    """Something that happens once."""

    is_set: bool = False
    waiting: list[_Ticket] = field(default_factory=list)


Wait: TypeAlias = tuple[Event | None, float]
"""Waits until the event, if any, or the time, whichever is first; the time may be in the past."""

Process: TypeAlias = Generator[Wait, None, T]
"""A process: yields its waits, and receives their results."""


class _Ticket:
    """One wait of one process, which ends once."""

    __slots__ = ("process",)

    def __init__(self, process: Process[None]) -> None:
        self.process: Process[None] | None = process


class Kernel:
    """Runs processes and calls in order of time; those at the same time in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_s = -math.inf
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def call(self, at_s: float, what: Callable[[], None]) -> None:
        """Call `what` at `at_s`, or now if that has passed; never if it is infinite."""
        if at_s < math.inf:
            heapq.heappush(self._agenda, (max(at_s, self.now_s), next(self._order), what))

    def start(self, at_s: float, process: Process[None]) -> None:
        """Start a process at `at_s`."""
        self.call(at_s, partial(self._go_on, process))

    def fire(self, event: Event) -> None:
        """Fire the event: processes that wait for it continue now."""
        event.is_set = True
        for ticket in event.waiting:
            self.call(self.now_s, partial(self._use, ticket))
        event.waiting.clear()

    def run(self) -> None:
        """Run until nothing is left."""
        while self._agenda:
            self.now_s, _, what = heapq.heappop(self._agenda)
            what()

    def _use(self, ticket: _Ticket) -> None:
        process, ticket.process = ticket.process, None
        if process is not None:
            self._go_on(process)

    def _go_on(self, process: Process[None]) -> None:
        for event, until_s in process:
            if event is not None and event.is_set:
                continue
            ticket = _Ticket(process)
            if event is not None:
                event.waiting.append(ticket)
            self.call(until_s, partial(self._use, ticket))
            return
