"""The queue of the device's runs in virtual time: what it does on a day of arrivals, ends of runs and reservations."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from upwell.shared.errors import UpwellError
from upwell.shared.routing.scheduling.run_queue import QueuedRun, RunQueue
from upwell.shared.routing.scheduling.run_request import RunRequest


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
class Reserved:
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
    """What became of somebody. Surely in time, if taken on, unless a reservation came later or the run is too long."""

    run: QueuedRun
    takes_s: float
    is_sure: bool = True
    leaves: Callable[[], None] = lambda: None
    error: UpwellError | None = None
    joined_s: float = math.nan
    ended_s: float = math.nan
    has_left: bool = False
    is_over: bool = False


class VirtualScheduler:
    """Drives a `RunQueue` as the threads of a device would, by a clock of its own."""

    def __init__(self, instances: int) -> None:
        self.queue = RunQueue(instances)
        self.requests: list[Request] = []
        self._reserved: list[Request] = []
        self.most_at_once = 0
        self.idled = False
        """Whether a place was free while somebody waited, and no reservation to wait for."""
        self._now_s = 0.0
        self._ids = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._begun: set[QueuedRun] = set()

    def play(self, day: Sequence[Arrival | Reserved]) -> None:
        """To the end, when nobody is left."""
        for one in day:
            begin = self._arrive if isinstance(one, Arrival) else self._reserve
            self._at(one.at_s, lambda one=one, begin=begin: begin(one))  # type: ignore[misc]  # bound now
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
            self._follow()

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._ids), happen))

    def _follow(self) -> None:
        """What those do whom the scheduler has let in, or told that they must go."""
        queue = self.queue
        self.most_at_once = max(self.most_at_once, len(queue.running))
        is_free = len(queue.running) < queue.instances
        self.idled = self.idled or (is_free and bool(queue.waiting) and not queue.unused_slots())
        for request in self.requests:
            run = request.run
            if run.error is not None and request.error is None:
                request.error = run.error
                self._done(request)
            if run in queue.running and run not in self._begun:
                self._begun.add(run)
                self._at(self._now_s + request.takes_s, lambda request=request: self._end(request))  # type: ignore[misc]  # bound now

    def _end(self, request: Request) -> None:
        request.ended_s = self._now_s
        self.queue.leave(request.run, self._now_s)
        self._done(request)

    @staticmethod
    def _done(request: Request) -> None:
        request.is_over = True
        request.leaves()

    def _join(self, request: Request, owner: int = 0) -> None:
        self.requests.append(request)
        request.joined_s = self._now_s
        try:
            self.queue.join(request.run, self._now_s, owner)
        except UpwellError as error:
            request.error = error
            self._done(request)

    def _arrive(self, arrival: Arrival) -> None:
        run_s = arrival.run_request.known_run_s
        run = QueuedRun(self._now_s + arrival.allowed_s, arrival.run_request)
        request = Request(run, run_s * arrival.share, is_sure=run_s <= arrival.allowed_s)
        self._join(request)
        if math.isfinite(arrival.patience_s):
            self._at(self._now_s + arrival.patience_s, lambda: self._give_up(request))

    def _give_up(self, request: Request) -> None:
        if request.run in self.queue.waiting:
            request.has_left = True
            self.queue.leave(request.run, self._now_s)

    def _reserve(self, reserved: Reserved) -> None:
        """The run is surely in time where nothing that is there already may reach into its slot."""
        owner = next(self._ids)
        ends_s = [run.began_s + run.run_request.known_run_s for run in self.queue.running]
        free_s = max([self._now_s, *ends_s]) + sum(run.run_request.known_run_s for run in self.queue.waiting)
        start_s = self._now_s + reserved.lead_s
        slot = self.queue.reserve(start_s, start_s + reserved.run_s, owner)
        run_request = RunRequest(run_s=reserved.run_s, is_owed=True)
        request = Request(
            QueuedRun(start_s + reserved.run_s, run_request),
            reserved.run_s,
            is_sure=free_s <= slot.ready_s and all(one.is_sure or one.is_over for one in self._reserved),
            leaves=lambda: self.queue.release(slot, self._now_s),
        )
        for other in self.requests + self._reserved:
            if other.run in self.queue.waiting or not request.is_sure:
                other.is_sure = False
        self._reserved.append(request)
        self._at(max(self._now_s, slot.ready_s - reserved.early_s), lambda: self._call_in(reserved, request, owner))

    def _call_in(self, reserved: Reserved, request: Request, owner: int) -> None:
        if reserved.is_needed:
            self._join(request, owner)
        else:
            self._done(request)
