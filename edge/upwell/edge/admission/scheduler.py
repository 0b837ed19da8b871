"""The device's turnstile: so many runs of a model at a time, and nobody waits in vain."""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from upwell.edge.admission.schedulability import (
    Job,
    RunRequest,
    ScheduledRun,
    by_deadline,
    choose,
    ends_s,
    is_in_the_way,
    late,
    latest_gap,
    make_room,
    slots_due,
)
from upwell.shared.errors import DeadlineExceeded, Refused, Superseded, UpwellError

_UNKNOWN = RunRequest()


@dataclass(eq=False, slots=True)
class _Ticket:
    """Somebody who waits or runs. The gate opens when it is their turn, or when `told` says that it never will be.

    As a context it is the whole turn: waiting for it, and giving the place back.
    """

    ready_s: ClassVar[float] = -math.inf

    scheduler: EdfScheduler
    deadline_s: float
    run_request: RunRequest
    gate: threading.Lock = field(init=False, repr=False)
    """Of somebody who waits."""
    told: UpwellError | None = None
    began_s: float = math.nan

    def __enter__(self) -> None:
        scheduler = self.scheduler
        try:
            with scheduler._lock:
                if not scheduler._slots and len(scheduler._running) < scheduler.instances:  # then nobody waits
                    self.began_s = time.monotonic()
                    scheduler._running.append(self)
                    return
            scheduler._enter(self)
        except BaseException:
            self.scheduler._leave(self)
            raise

    def __exit__(self, *_: object) -> None:
        scheduler = self.scheduler
        with scheduler._lock:
            scheduler._running.remove(self)
            if scheduler._waiting:
                scheduler._run_waiting(time.monotonic())


@dataclass(eq=False, slots=True)
class _Slot:
    """Kept for a run that may be needed: it would begin at `ready_s`, be over by `deadline_s`, as `run_request` says.

    `is_used` once the run has asked for its turn: what keeps its place from then on is its ticket.
    """

    ready_s: float
    deadline_s: float
    run_request: RunRequest
    thread: int
    is_used: bool = False


class EdfScheduler:
    """Runs in the callers' own threads, `instances` of them at one time, with admission.

    Who asks for a turn is taken on only if it will be in time, by the run times that the claims predict, and if nobody
    who was taken on before is late for it; asking and joining are one step. So what waits here is answered in time,
    unless runs take longer than predicted or a promise is made later. The order is the earliest deadline first (Liu &
    Layland 1973); a higher priority goes before a lower one wherever that makes nobody late, and where it does, takes
    the place of a lower one, which is told at once. See `upwell.edge.admission.schedulability` for the
    arithmetic, and for what holds for several runs at one time.
    """

    def __init__(self, instances: int = 1) -> None:
        self.instances = instances
        self._lock = threading.Lock()
        self._waiting: list[_Ticket] = []  # in the order of their coming
        self._running: list[_Ticket] = []
        self._slots: list[_Slot] = []  # in order; at no instant more than `instances`

    def resize(self, instances: int) -> None:
        """From now on so many runs at one time; those in progress go on, and whoever waits keeps its place."""
        with self._lock:
            self.instances = instances
            self._run_waiting(time.monotonic())

    @property
    def ahead(self) -> int:
        """Runs that end before one that comes now could begin, one after the other: all others go on beside those."""
        return (len(self._waiting) + len(self._running)) // self.instances

    def ahead_of(self, deadline_s: float, run_request: RunRequest) -> int:
        """The same for a request like this one, which does not wait for all that are there."""
        with self._lock:
            before = [
                other
                for other in self._waiting
                if not _replaces(run_request, other.run_request)
                and (other.run_request.rank, -other.deadline_s) >= (run_request.rank, -deadline_s)
            ]
            return (len(before) + len(self._running)) // self.instances

    def turn(self, deadline_s: float, run_request: RunRequest = _UNKNOWN) -> AbstractContextManager[None]:
        """Hold a place in the queue for a run that must be over by `deadline_s`.

        Entering it raises `Refused` at once where that cannot be, or later where a request of higher priority takes the
        place, `Superseded` where a newer one of the same stream does, and `DeadlineExceeded` where the runs before it
        took so much longer than predicted that it could not be in time any more. Nothing was run then.
        """
        return _Ticket(self, deadline_s, run_request)

    @contextmanager
    def promise(self, start_s: float, end_s: float) -> Iterator[float]:
        """Keep a slot for a request that may need a turn later, and say when it must begin.

        Wanted is [start_s, end_s]; where as many other promises lie there already as there are runs at one time, the
        slot moves to the latest gap before, so that all who wait for the same silent cloud can fall back in time, one
        after the other. Slots that may follow another are twice as long as wanted: what runs slower than predicted
        would add up from slot to slot. New turns stay clear of the slots that begin before the device would be done
        with them: before a slot, or, where they have the time, after it. The run itself is a turn with a claim that
        `is_owed`, taken within the context by the same thread.
        """
        run_request = RunRequest(run_s=end_s - start_s, is_owed=True)
        with self._lock:
            if len(self._slots) >= self.instances:
                start_s -= end_s - start_s
            taken = [(slot.ready_s, slot.deadline_s) for slot in self._slots]
            slot = _Slot(*latest_gap(taken, start_s, end_s, self.instances), run_request, threading.get_ident())
            bisect.insort(self._slots, slot, key=lambda one: one.ready_s)
        try:
            yield slot.ready_s
        finally:
            with self._lock:
                self._slots.remove(slot)
                self._run_waiting(time.monotonic())

    def _enter(self, ticket: _Ticket) -> None:
        with self._lock:
            if self._join(ticket, time.monotonic()):
                return
        useful_s = ticket.deadline_s - (0.0 if ticket.run_request.is_owed else ticket.run_request.known_run_s)
        timeout_s = min(max(0.0, useful_s - time.monotonic()), threading.TIMEOUT_MAX)
        is_told = ticket.gate.acquire(timeout=timeout_s)
        if ticket.told is not None:
            raise ticket.told
        if not is_told:  # a turn that came in this very moment is passed on
            raise _late(ticket.run_request)

    def _join(self, new: _Ticket, now_s: float) -> bool:
        """Take a free place (True) or one in the queue. Raises what the caller is told where there is neither."""
        is_free = len(self._running) < self.instances
        if not is_free and new.deadline_s <= now_s:
            raise _late(new.run_request)
        twin = next((other for other in self._waiting if _replaces(new.run_request, other.run_request)), None)
        if twin is not None and twin.run_request.arrived_s > new.run_request.arrived_s:
            raise _superseded()
        if new.run_request.is_owed:
            self._use_slot()
        waiting = [other for other in self._waiting if other is not twin]
        starts = self._starts(now_s)
        due: list[Job] = [*waiting, *slots_due(self._kept_slots(), [*waiting, new], *starts)]
        runs_now = is_free and not self._must_wait(new, starts)
        leaving = make_room(due, new, *starts, is_free=runs_now)
        if leaving is None:
            raise _refused(due, new, starts, now_s)
        if twin is not None:
            self._tell(twin, _superseded())
        for other in waiting:
            if other in leaving:
                self._tell(other, Refused("a request of higher priority took its place on the busy device"))
        if runs_now:
            self._run(new, now_s)
        else:
            new.gate = threading.Lock()
            new.gate.acquire()
            self._waiting.append(new)
        if new.run_request.is_owed:
            self._run_waiting(now_s)  # who had to wait for its slot may go beside it
        return runs_now

    def _use_slot(self) -> None:
        own = (slot for slot in self._slots if slot.thread == threading.get_ident() and not slot.is_used)
        slot = next(own, None)
        if slot is not None:
            slot.is_used = True

    def _kept_slots(self) -> list[_Slot]:
        return [slot for slot in self._slots if not slot.is_used]

    def _starts(self, now_s: float) -> list[ScheduledRun]:
        """When each place is free, in order. Where more run than may (a resize), the last to end free the places."""
        busy = [ScheduledRun.after(ticket.run_request, ticket.began_s, now_s) for ticket in self._running]
        busy.sort(key=lambda start: start.at_s)
        return [ScheduledRun(now_s)] * (self.instances - len(busy)) + busy[-self.instances :]

    def _must_wait(self, ticket: _Ticket, starts: Sequence[ScheduledRun]) -> bool:
        return is_in_the_way(ticket, [start.at_s for start in starts], self._kept_slots())

    def _tell(self, ticket: _Ticket, error: UpwellError) -> None:
        self._waiting.remove(ticket)
        ticket.told = error
        ticket.gate.release()

    def _leave(self, ticket: _Ticket) -> None:
        """Stop waiting, or give up the turn, or neither: whatever ended the caller's wait, the device is never lost."""
        with self._lock:
            if ticket in self._running:
                self._running.remove(ticket)
                if self._waiting:
                    self._run_waiting(time.monotonic())
            elif ticket in self._waiting:
                self._waiting.remove(ticket)

    def _run_waiting(self, now_s: float) -> None:
        """Fill the free places; who must wait for a promise gets its turn when the promise ends."""
        while self._waiting and len(self._running) < self.instances:
            for ticket in [one for one in self._waiting if _is_hopeless(one, now_s)]:
                self._tell(ticket, _late(ticket.run_request))
            starts = self._starts(now_s)
            ready = [ticket for ticket in self._waiting if not self._must_wait(ticket, starts)]
            if not ready:
                return
            others = [ticket for ticket in self._waiting if ticket not in ready]
            due = slots_due(self._kept_slots(), self._waiting, *starts)
            chosen = choose(ready, *starts, others=[*others, *due])
            self._waiting.remove(chosen)
            self._run(chosen, now_s)
            chosen.gate.release()

    def _run(self, ticket: _Ticket, now_s: float) -> None:
        ticket.began_s = now_s
        self._running.append(ticket)


def _replaces(new: RunRequest, old: RunRequest) -> bool:
    return new.stream is not None and new.stream == old.stream and not (new.is_owed or old.is_owed)


def _is_hopeless(ticket: _Ticket, now_s: float) -> bool:
    """Whether it cannot be in time even if it ran now; running it all the same would make the others late as well."""
    return not ticket.run_request.is_owed and now_s + ticket.run_request.known_run_s > ticket.deadline_s


def _late(run_request: RunRequest) -> DeadlineExceeded:
    if math.isnan(run_request.run_s) or run_request.is_owed:
        return DeadlineExceeded("the device was busy until the deadline")
    needed = f"{run_request.run_s * 1e3:.1f} ms"
    return DeadlineExceeded(f"the device was busy until less than the {needed} were left that the run takes")


def _superseded() -> Superseded:
    return Superseded("a newer request of the same source came while this one was waiting for the device")


def _refused(due: Sequence[Job], new: _Ticket, starts: Sequence[ScheduledRun], now_s: float) -> Refused:
    """Why there is no room: it would be late itself, or make another late."""
    ahead = by_deadline([*due, new])
    ahead = ahead[: ahead.index(new) + 1]
    end_s = dict(ends_s(ahead, *starts))[new]
    left_ms, needed_ms = (new.deadline_s - now_s) * 1e3, (end_s - now_s) * 1e3
    if new in late(ahead, *starts):
        return Refused(
            f"the device is busy: {left_ms:.1f} ms are left and it is done in {needed_ms:.1f} ms "
            f"with the {len(ahead)} requests before this one; try again later"
        )
    return Refused("the device is busy: others, taken on before, would be late with this request; try again later")
