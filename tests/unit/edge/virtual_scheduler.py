"""The real scheduler in virtual time: what it does on a day of arrivals, ends of runs and promises."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace
from unittest.mock import patch

from upwell.edge.admission.schedulability import RunRequest
from upwell.edge.admission.scheduler import EdfScheduler, _Ticket
from upwell.shared.errors import UpwellError


@dataclass(frozen=True)
class Arrival:
    """Somebody asks at `at_s` for a run that is due `allowed_s` later, and leaves after `patience_s` in the queue.

    The run takes `share` of what it claims.
    """

    at_s: float
    run_request: RunRequest
    allowed_s: float
    share: float = 1.0
    patience_s: float = math.inf


@dataclass(frozen=True)
class Promised:
    """At `at_s` a slot is asked for, `run_s` long, that begins `lead_s` later.

    Then, or `early_s` sooner, the run comes if it `is_needed`.
    """

    at_s: float
    lead_s: float
    run_s: float
    is_needed: bool = True
    early_s: float = 0.0


@dataclass(eq=False)
class Request:
    """What became of somebody. Surely in time, if taken on, unless a promise came later or the run is too long."""

    ticket: _Ticket
    takes_s: float
    is_sure: bool = True
    leaves: Callable[[], None] = lambda: None
    error: UpwellError | None = None
    joined_s: float = math.nan
    ended_s: float = math.nan
    has_left: bool = False
    is_over: bool = False


class VirtualScheduler:
    """Drives a `EdfScheduler` as the threads of a device would, by a clock of its own."""

    def __init__(self, instances: int) -> None:
        self.scheduler = EdfScheduler(instances)
        self.requests: list[Request] = []
        self._promised: list[Request] = []
        self.most_at_once = 0
        self.idled = False
        """Whether a place was free while somebody waited, and no promise to wait for."""
        self._now_s = 0.0
        self._thread = 0
        self._ids = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._begun: set[_Ticket] = set()

    def play(self, day: Sequence[Arrival | Promised]) -> None:
        """To the end, when nobody is left."""
        for one in day:
            begin = self._arrive if isinstance(one, Arrival) else self._promise
            self._at(one.at_s, lambda one=one, begin=begin: begin(one))  # type: ignore[misc]  # bound now
        clock = patch("upwell.edge.admission.scheduler.time", SimpleNamespace(monotonic=lambda: self._now_s))
        threads = patch(
            "upwell.edge.admission.scheduler.threading", SimpleNamespace(get_ident=lambda: self._thread, Lock=Lock)
        )
        with clock, threads:
            while self._events:
                self._now_s, _, happen = heapq.heappop(self._events)
                happen()
                self._follow()

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._ids), happen))

    def _follow(self) -> None:
        """What those do whom the scheduler has let in, or told that they must go."""
        scheduler = self.scheduler
        self.most_at_once = max(self.most_at_once, len(scheduler._running))
        is_free = len(scheduler._running) < scheduler.instances
        self.idled = self.idled or (is_free and bool(scheduler._waiting) and not scheduler._kept_slots())
        for request in self.requests:
            ticket = request.ticket
            if ticket.told is not None and request.error is None:
                request.error = ticket.told
                self._done(request)
            if ticket in scheduler._running and ticket not in self._begun:
                self._begun.add(ticket)
                self._at(self._now_s + request.takes_s, lambda request=request: self._end(request))  # type: ignore[misc]  # bound now

    def _end(self, request: Request) -> None:
        request.ended_s = self._now_s
        self.scheduler._leave(request.ticket)
        self._done(request)

    @staticmethod
    def _done(request: Request) -> None:
        request.is_over = True
        request.leaves()

    def _join(self, request: Request) -> None:
        self.requests.append(request)
        request.joined_s = self._now_s
        try:
            self.scheduler._join(request.ticket, self._now_s)
        except UpwellError as error:
            request.error = error
            self._done(request)

    def _arrive(self, arrival: Arrival) -> None:
        run_s = arrival.run_request.known_run_s
        ticket = _Ticket(self.scheduler, self._now_s + arrival.allowed_s, arrival.run_request)
        request = Request(ticket, run_s * arrival.share, is_sure=run_s <= arrival.allowed_s)
        self._join(request)
        if math.isfinite(arrival.patience_s):
            self._at(self._now_s + arrival.patience_s, lambda: self._give_up(request))

    def _give_up(self, request: Request) -> None:
        if request.ticket in self.scheduler._waiting:
            request.has_left = True
            self.scheduler._leave(request.ticket)

    def _promise(self, promised: Promised) -> None:
        """The run is surely in time where nothing that is there already may reach into its slot."""
        thread = self._thread = next(self._ids)
        ends_s = [ticket.began_s + ticket.run_request.known_run_s for ticket in self.scheduler._running]
        free_s = max([self._now_s, *ends_s]) + sum(ticket.run_request.known_run_s for ticket in self.scheduler._waiting)
        start_s = self._now_s + promised.lead_s
        context = self.scheduler.promise(start_s, start_s + promised.run_s)
        ready_s = context.__enter__()
        run_request = RunRequest(run_s=promised.run_s, is_owed=True)

        def leave() -> None:
            context.__exit__(None, None, None)

        request = Request(
            _Ticket(self.scheduler, start_s + promised.run_s, run_request),
            promised.run_s,
            is_sure=free_s <= ready_s and all(one.is_sure or one.is_over for one in self._promised),
            leaves=leave,
        )
        for other in self.requests + self._promised:
            if other.ticket in self.scheduler._waiting or not request.is_sure:
                other.is_sure = False
        self._promised.append(request)
        self._at(max(self._now_s, ready_s - promised.early_s), lambda: self._call_in(promised, request, thread))

    def _call_in(self, promised: Promised, request: Request, thread: int) -> None:
        self._thread = thread
        if promised.is_needed:
            self._join(request)
        else:
            self._done(request)
