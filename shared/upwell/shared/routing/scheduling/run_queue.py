"""The queue of runs on one device, with slots reserved for runs that may be needed later.

The agent drives it with threads, locks and the clock, the simulator in virtual time. Pure; time is an argument.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from upwell.shared.errors import DeadlineExceeded, Refused, Superseded, UpwellError
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.routing.scheduling.schedulability import (
    Job,
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


class QueuedRun:
    """One run that waits for the device or is on it.

    `wake` means that the run has begun, at `began_s` (NaN before), or that `error` says why it never will.
    """

    __slots__ = ("began_s", "deadline_s", "error", "run_request")
    ready_s: ClassVar[float] = -math.inf

    def __init__(self, deadline_s: float, run_request: RunRequest) -> None:
        self.deadline_s = deadline_s
        self.run_request = run_request
        self.error: UpwellError | None = None
        self.began_s = math.nan

    def queue(self) -> None:
        """Called before it waits."""

    def wake(self) -> None:
        """Called once, for a run that waits."""

    @property
    def latest_start_s(self) -> float:
        """The latest time at which it may start; an owed run starts however late it is."""
        return self.deadline_s - (0.0 if self.run_request.is_owed else self.run_request.known_run_s)

    def late_error(self) -> DeadlineExceeded:
        """The error for a run that waited until `latest_start_s`."""
        if math.isnan(self.run_request.run_s) or self.run_request.is_owed:
            return DeadlineExceeded("the device was busy until the deadline")
        needed = f"{self.run_request.run_s * 1e3:.1f} ms"
        return DeadlineExceeded(f"the device was busy until less time was left than the {needed} that the run takes")


@dataclass(eq=False, slots=True)
class Slot:
    """Reserved for a run that may be needed: it would begin at `ready_s` and end by `deadline_s`, as `run_request`
    says.

    `is_used` once its `owner` has asked for the run: from then on the run holds the place.
    """

    ready_s: float
    deadline_s: float
    run_request: RunRequest
    owner: Hashable
    is_used: bool = False


class RunQueue:
    """At most `instances` runs at a time, with admission control.

    A run is admitted only if it will be in time, by the run times that the requests predict, and makes no admitted run
    late. So what waits here is answered in time, unless runs take longer than predicted or a slot is reserved later.
    The order is earliest deadline first (Liu & Layland 1973); a higher priority goes before a lower one if that makes
    no run late, and otherwise replaces a lower one, which is informed at once. See `schedulability` for the arithmetic,
    and for several runs at a time. `waiting` is in order of arrival, `slots` in order of time: there are never more
    than `instances` at once.
    """

    def __init__(self, instances: int = 1) -> None:
        self.instances = instances
        self.waiting: list[QueuedRun] = []
        self.running: list[QueuedRun] = []
        self.slots: list[Slot] = []

    def resize(self, instances: int, now_s: float) -> None:
        """Change the number of runs at a time; runs in progress go on, and waiting ones keep their places."""
        self.instances = instances
        self._run_waiting(now_s)

    @property
    def ahead(self) -> int:
        """Number of consecutive runs before a new one could begin; all others run beside those."""
        return (len(self.waiting) + len(self.running)) // self.instances

    def ahead_of(self, deadline_s: float, run_request: RunRequest) -> int:
        """The same for this request, which need not wait for all runs."""
        before = [
            other
            for other in self.waiting
            if not _replaces(run_request, other.run_request)
            and (other.run_request.rank, -other.deadline_s) >= (run_request.rank, -deadline_s)
        ]
        return (len(before) + len(self.running)) // self.instances

    def reserve(self, start_s: float, end_s: float, owner: Hashable) -> Slot:
        """Reserve a slot for a request that may need a run later, from `ready_s` on.

        The wanted slot is [start_s, end_s]; if there are already as many others as runs at a time, the slot moves to
        the latest gap before it, so that all requests waiting for the same silent cloud can fall back in time, one
        after the other. Slots that may follow another are twice as long as wanted, since delays would add up from slot
        to slot. New runs keep clear of the slots that begin before the device would be done with them: before a slot,
        or after it if they have the time. The run itself is one that `is_owed`.
        """
        run_request = RunRequest(run_s=end_s - start_s, is_owed=True)
        if len(self.slots) >= self.instances:
            start_s -= end_s - start_s
        taken = [(slot.ready_s, slot.deadline_s) for slot in self.slots]
        slot = Slot(*latest_gap(taken, start_s, end_s, self.instances), run_request, owner)
        bisect.insort(self.slots, slot, key=lambda one: one.ready_s)
        return slot

    def release(self, slot: Slot, now_s: float) -> None:
        """Release a slot."""
        self.slots.remove(slot)
        self._run_waiting(now_s)

    def join(self, new: QueuedRun, now_s: float, owner: Hashable = None) -> bool:
        """Take a free place (True) or one in the queue.

        Raises `Refused` if it cannot be in time or would make others late, `Superseded` if a newer run of its stream
        waits, and `DeadlineExceeded` if it comes too late.
        """
        is_free = len(self.running) < self.instances
        if is_free and not self.slots:  # then no run waits
            new.began_s = now_s
            self.running.append(new)
            return True
        if not is_free and new.deadline_s <= now_s:
            raise new.late_error()
        twin = next((other for other in self.waiting if _replaces(new.run_request, other.run_request)), None)
        if twin is not None and twin.run_request.arrived_s > new.run_request.arrived_s:
            raise _superseded()
        if new.run_request.is_owed:
            self._use_slot(owner)
        waiting = [other for other in self.waiting if other is not twin]
        starts = self._starts(now_s)
        due: list[Job] = [*waiting, *slots_due(self.unused_slots(), [*waiting, new], *starts)]
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
            new.queue()
            self.waiting.append(new)
        if new.run_request.is_owed:
            self._run_waiting(now_s)  # a run that had to wait for the slot may run beside it
        return runs_now

    def leave(self, run: QueuedRun, now_s: float) -> None:
        """Stop waiting or give up the run; does nothing otherwise, so that the device is never lost."""
        if run in self.running:
            self.running.remove(run)
            if self.waiting:
                self._run_waiting(now_s)
        elif run in self.waiting:
            self.waiting.remove(run)

    def unused_slots(self) -> list[Slot]:
        """The slots whose runs may still be asked for."""
        return [slot for slot in self.slots if not slot.is_used]

    def _use_slot(self, owner: Hashable) -> None:
        slot = next((slot for slot in self.slots if slot.owner == owner and not slot.is_used), None)
        if slot is not None:
            slot.is_used = True

    def _starts(self, now_s: float) -> list[ScheduledRun]:
        """When each place is free, in order. After a resize to fewer, the last runs to end free the places."""
        busy = [ScheduledRun.after(run.run_request, run.began_s, now_s) for run in self.running]
        busy.sort(key=lambda start: start.at_s)
        return [ScheduledRun(now_s)] * (self.instances - len(busy)) + busy[-self.instances :]

    def _must_wait(self, run: QueuedRun, starts: Sequence[ScheduledRun]) -> bool:
        return is_in_the_way(run, [start.at_s for start in starts], self.unused_slots())

    def _tell(self, run: QueuedRun, error: UpwellError) -> None:
        self.waiting.remove(run)
        run.error = error
        run.wake()

    def _run_waiting(self, now_s: float) -> None:
        """Fill the free places; a run that must wait for a slot starts when the slot ends."""
        while self.waiting and len(self.running) < self.instances:
            for run in [one for one in self.waiting if _is_hopeless(one, now_s)]:
                self._tell(run, run.late_error())
            chosen = self._next(now_s)
            if chosen is None:
                return
            self.waiting.remove(chosen)
            self._run(chosen, now_s)
            chosen.wake()

    def _next(self, now_s: float) -> QueuedRun | None:
        """The waiting run that goes next; None if none waits or all must wait for a slot."""
        if len(self.waiting) == 1 and not self.slots:  # what this buys: tests/benchmarks/test_agent_overhead.py
            return self.waiting[0]
        return self._planned(now_s)

    def _planned(self, now_s: float) -> QueuedRun | None:
        """The same by a plan of the device."""
        starts = self._starts(now_s)
        ready = [run for run in self.waiting if not self._must_wait(run, starts)]
        if not ready:
            return None
        others = [run for run in self.waiting if run not in ready]
        due = slots_due(self.unused_slots(), self.waiting, *starts)
        return choose(ready, *starts, others=[*others, *due])

    def _run(self, run: QueuedRun, now_s: float) -> None:
        run.began_s = now_s
        self.running.append(run)


def _replaces(new: RunRequest, old: RunRequest) -> bool:
    return new.stream is not None and new.stream == old.stream and not (new.is_owed or old.is_owed)


def _is_hopeless(run: QueuedRun, now_s: float) -> bool:
    """Whether it would be late even if it ran now; to run it would make the others late as well."""
    return not run.run_request.is_owed and now_s > run.latest_start_s


def _superseded() -> Superseded:
    return Superseded("a newer request of the same source came while this one was waiting for the device")


def _refused(due: Sequence[Job], new: QueuedRun, starts: Sequence[ScheduledRun], now_s: float) -> Refused:
    """The reason for a refusal: it would be late itself, or make another late."""
    ahead = by_deadline([*due, new])
    ahead = ahead[: ahead.index(new) + 1]
    end_s = dict(ends_s(ahead, *starts))[new]
    left_ms, needed_ms = (new.deadline_s - now_s) * 1e3, (end_s - now_s) * 1e3
    if new in late(ahead, *starts):
        return Refused(
            f"the device is busy: {left_ms:.1f} ms are left, but it needs {needed_ms:.1f} ms with the {len(ahead)} "
            "requests before this one; try again later"
        )
    return Refused("the device is busy: requests admitted earlier would be late if it ran; try again later")
