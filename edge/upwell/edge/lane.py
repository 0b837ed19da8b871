"""The device's turnstile: one run of a model at a time, and nobody waits in vain."""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from upwell.edge.timetable import Claim, Job, Start, by_deadline, choose, ends_s, late, make_room
from upwell.shared.errors import DeadlineExceeded, Refused, Superseded, UpwellError

_UNKNOWN = Claim()


@dataclass(eq=False, slots=True)
class _Ticket:
    """Somebody who waits. The gate opens when it is their turn, or when `told` says that it never will be."""

    ready_s: ClassVar[float] = -math.inf

    deadline_s: float
    claim: Claim
    gate: threading.Lock = field(default_factory=threading.Lock)
    told: UpwellError | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Slot:
    """Kept for a run that may be needed: it would begin at `ready_s`, be over by `deadline_s`, and take its `claim`."""

    ready_s: float
    deadline_s: float
    claim: Claim = field(compare=False)


class Lane:
    """Mutual exclusion in the callers' own threads, with admission.

    Who asks for a turn is taken on only if it will be in time, by the run times that the claims predict, and if nobody
    who was taken on before is late for it; asking and joining are one step. So what waits here is answered in time,
    unless runs take longer than predicted. The order is the earliest deadline first (Liu & Layland 1973); a higher
    priority goes before a lower one wherever that makes nobody late, and where it does, takes the place of a lower one,
    which is told at once. See `upwell.edge.timetable` for the arithmetic.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Ticket] = []  # in the order of their coming
        self._running: _Ticket | None = None
        self._began_s = 0.0
        self._slots: list[_Slot] = []  # disjoint, in order

    @property
    def ahead(self) -> int:
        """Runs in progress or waiting."""
        return len(self._waiting) + (self._running is not None)

    def ahead_of(self, deadline_s: float, claim: Claim) -> int:
        """Of those, the runs that a request like this one would wait for."""
        with self._lock:
            before = [
                other
                for other in self._waiting
                if not _replaces(claim, other.claim)
                and (other.claim.rank, -other.deadline_s) >= (claim.rank, -deadline_s)
            ]
            return len(before) + (self._running is not None)

    @contextmanager
    def turn(self, deadline_s: float, claim: Claim = _UNKNOWN) -> Iterator[None]:
        """Hold the lane for a run that must be over by `deadline_s`.

        Raises `Refused` at once where that cannot be, or later where a request of higher priority takes the place,
        `Superseded` where a newer one of the same stream does, and `DeadlineExceeded` where the runs before it took so
        much longer than predicted that it could not be in time any more. Nothing was run then.
        """
        ticket = _Ticket(deadline_s, claim)
        try:
            self._enter(ticket)
            yield
        finally:
            self._leave(ticket)

    @contextmanager
    def promise(self, start_s: float, end_s: float) -> Iterator[float]:
        """Keep a slot for a request that may need a turn later, and say when it must begin.

        Wanted is [start_s, end_s]; where other promises lie there already, the slot moves to the latest gap before it,
        so that all who wait for the same silent cloud can fall back in time, one after the other. Such a slot is twice
        as long as wanted: what runs slower than predicted would add up from slot to slot. New turns stay clear of the
        slots that begin before the device would be done with them: before a slot, or, where they have the time, after
        it. The run itself is a turn with a claim that `is_owed`, taken within the context.
        """
        claim = Claim(run_s=end_s - start_s, is_owed=True)
        with self._lock:
            if self._slots:
                start_s -= end_s - start_s
            taken = [(slot.ready_s, slot.deadline_s) for slot in self._slots]
            slot = _Slot(*_latest_gap(taken, start_s, end_s), claim)
            bisect.insort(self._slots, slot)
        try:
            yield slot.ready_s
        finally:
            with self._lock:
                self._slots.remove(slot)
                if self._running is None:
                    self._run_next(time.monotonic())

    def _enter(self, ticket: _Ticket) -> None:
        ticket.gate.acquire()
        with self._lock:
            self._join(ticket, time.monotonic())
        useful_s = ticket.deadline_s - (0.0 if ticket.claim.is_owed else ticket.claim.known_run_s)
        timeout_s = min(max(0.0, useful_s - time.monotonic()), threading.TIMEOUT_MAX)
        is_told = ticket.gate.acquire(timeout=timeout_s)
        if ticket.told is not None:
            raise ticket.told
        if not is_told:  # a turn that came in this very moment is passed on
            raise _late(ticket.claim)

    def _join(self, new: _Ticket, now_s: float) -> None:
        """Take the free lane or a place in the queue. Raises what the caller is told where there is neither."""
        if self._running is not None and new.deadline_s <= now_s:
            raise _late(new.claim)
        twin = next((other for other in self._waiting if _replaces(new.claim, other.claim)), None)
        if twin is not None and twin.claim.arrived_s > new.claim.arrived_s:
            raise _superseded()
        waiting = [other for other in self._waiting if other is not twin]
        start = self._start(now_s)
        due: list[Job] = [*waiting, *self._due_slots([*waiting, new], start)]
        leaving = make_room(due, new, start, is_free=self._running is None)
        waits = self._running is not None
        if leaving is None:
            if not self._fits_behind_slots(waiting, new, start):
                raise _refused(due, new, start, now_s)
            leaving, waits = [], True
        if twin is not None:
            self._tell(twin, _superseded())
        for other in waiting:
            if other in leaving:
                self._tell(other, Refused("a request of higher priority took its place on the busy device"))
        if waits:
            self._waiting.append(new)
        else:
            self._run(new, now_s)

    def _fits_behind_slots(self, waiting: Sequence[_Ticket], new: _Ticket, start: Start) -> bool:
        """Whether everybody is in time if all the promises in the way are kept first."""
        due = self._due_slots([*waiting, new], start)
        if not due:
            return False
        behind = Start(max(start.at_s, due[-1].ready_s + due[-1].claim.known_run_s), start.spread_s)
        return make_room(waiting, new, behind, is_free=False) == []

    def _start(self, now_s: float) -> Start:
        return Start(now_s) if self._running is None else Start.after(self._running.claim, self._began_s, now_s)

    def _due_slots(self, tickets: Sequence[_Ticket], start: Start) -> list[_Slot]:
        """The promises that begin before the device is done with these: one that is far off is seldom needed."""
        busy_until_s = start.at_s + sum(ticket.claim.known_run_s for ticket in tickets)
        return [slot for slot in self._slots if slot.ready_s < busy_until_s]

    def _tell(self, ticket: _Ticket, error: UpwellError) -> None:
        self._waiting.remove(ticket)
        ticket.told = error
        ticket.gate.release()

    def _leave(self, ticket: _Ticket) -> None:
        """Stop waiting, or end the turn, or neither: whatever ended the caller's wait, the lane is never lost."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            elif ticket is self._running:
                self._running = None
                self._run_next(time.monotonic())

    def _run_next(self, now_s: float) -> None:
        for ticket in [one for one in self._waiting if _is_hopeless(one, now_s)]:
            self._tell(ticket, _late(ticket.claim))
        if self._waiting:
            start = Start(now_s)
            chosen = choose(self._waiting, start, self._due_slots(self._waiting, start))
            if self._is_in_the_way(chosen, now_s):
                return  # the end of the promise brings its turn
            self._waiting.remove(chosen)
            self._run(chosen, now_s)

    def _is_in_the_way(self, ticket: _Ticket, now_s: float) -> bool:
        """Whether the run would make a promise late that can be kept first."""
        end_s = now_s + ticket.claim.known_run_s
        return not ticket.claim.is_owed and any(
            slot.ready_s < end_s and end_s + slot.claim.known_run_s > slot.deadline_s
            and slot.ready_s + slot.claim.known_run_s + ticket.claim.known_run_s <= ticket.deadline_s
            for slot in self._slots
        )  # fmt: skip

    def _run(self, ticket: _Ticket, now_s: float) -> None:
        self._running, self._began_s = ticket, now_s
        ticket.gate.release()


def _replaces(new: Claim, old: Claim) -> bool:
    return new.stream is not None and new.stream == old.stream and not (new.is_owed or old.is_owed)


def _is_hopeless(ticket: _Ticket, now_s: float) -> bool:
    """Whether it cannot be in time even if it ran now; running it all the same would make the others late as well."""
    return not ticket.claim.is_owed and now_s + ticket.claim.known_run_s > ticket.deadline_s


def _late(claim: Claim) -> DeadlineExceeded:
    if math.isnan(claim.run_s) or claim.is_owed:
        return DeadlineExceeded("the device was busy until the deadline")
    needed = f"{claim.run_s * 1e3:.1f} ms"
    return DeadlineExceeded(f"the device was busy until less than the {needed} were left that the run takes")


def _superseded() -> Superseded:
    return Superseded("a newer request of the same source came while this one was waiting for the device")


def _refused(due: Sequence[Job], new: _Ticket, start: Start, now_s: float) -> Refused:
    """Why there is no room: it would be late itself, or make another late."""
    ahead = by_deadline([*due, new])
    ahead = ahead[: ahead.index(new) + 1]
    end_s = dict(ends_s(ahead, start))[new]
    left_ms, needed_ms = (new.deadline_s - now_s) * 1e3, (end_s - now_s) * 1e3
    if new in late(ahead, start):
        return Refused(
            f"the device is busy: {left_ms:.1f} ms are left and it is done in {needed_ms:.1f} ms "
            f"with the {len(ahead)} requests before this one; try again later"
        )
    return Refused("the device is busy: others, taken on before, would be late with this request; try again later")


def _latest_gap(taken: Sequence[tuple[float, float]], start_s: float, end_s: float) -> tuple[float, float]:
    """The latest interval as long as [start_s, end_s] that ends by `end_s` and overlaps none of `taken` (in order)."""
    length_s = end_s - start_s
    for taken_start_s, taken_end_s in reversed(taken):
        if taken_end_s <= end_s - length_s:
            break
        if taken_start_s < end_s:
            end_s = taken_start_s
    return (end_s - length_s, end_s)
