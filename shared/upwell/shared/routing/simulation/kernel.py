"""Simulated time: processes that wait for an event or an instant, and the order in which they go on."""

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
    """Runs processes and calls in the order of their instants; what falls together, in the order it was asked for."""

    def __init__(self) -> None:
        self.now_s = -math.inf
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def call(self, at_s: float, what: Callable[[], None]) -> None:
        """Call `what` at the instant `at_s`, or now if that has passed; never where it is infinite."""
        if at_s < math.inf:
            heapq.heappush(self._agenda, (max(at_s, self.now_s), next(self._order), what))

    def start(self, at_s: float, process: Process[None]) -> None:
        """Begin a process at the instant `at_s`."""
        self.call(at_s, partial(self._go_on, process))

    def fire(self, event: Event) -> None:
        """Let the event happen: those who wait for it go on now."""
        event.is_set = True
        for ticket in event.waiting:
            self.call(self.now_s, partial(self._use, ticket))
        event.waiting.clear()

    def run(self) -> None:
        """Until nothing is left to happen."""
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
