"""Schedulability: which queued runs start when, are in time, or must give way.

The device has as many servers as runs at a time; a server is given by the time at which it is free. The first free one
takes the next job (list scheduling, Graham 1969), and a job that would make a slot late waits behind it if it can.

Jobs that are in time stay so while runs take no longer than predicted. Take ready jobs in a fixed order: each begins
when the first server is free. Servers that are free sooner, shorter runs, and jobs that leave make none of the sorted
times at which servers are free later, by induction over the order; so no job begins later. (The anomalies of
multiprocessors need jobs that wait for each other.) Spreads are scheduled separately, so the same holds for them.

With several servers, earliest deadline first is no longer in time whenever any order is. Runs of 1, 1 and 2, due at 2,
2 and 2.5, need the long one first on two servers. To find such orders is NP-hard (Garey & Johnson 1979); so a job may
be refused that another order would have served, but every admitted job is in time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, TypeVar

from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.value_classes import value_class


class Job(Protocol):
    """A run that is due at `deadline_s` and can begin at `ready_s`."""

    @property
    def ready_s(self) -> float:
        """When it can begin; negative infinity if now."""

    @property
    def deadline_s(self) -> float:
        """When it must end."""

    @property
    def run_request(self) -> RunRequest:
        """What it needs of the device."""


J = TypeVar("J", bound=Job)
_ROUNDING_S = 1e-9  # a run that fills its slot exactly is in time, despite rounding


@value_class
class ScheduledRun:
    """A server of the device is usually free at `at_s`, or `spread_s` later in a bad case."""

    at_s: float
    spread_s: float = 0.0

    @classmethod
    def after(cls, run_request: RunRequest, began_s: float, now_s: float) -> ScheduledRun:
        """The server after a run that began at `began_s`.

        An overdue run is expected to need as long again as it is overdue: a device that hangs admits no more runs.
        """
        if math.isnan(run_request.run_s):
            return cls(now_s)
        return cls(now_s + abs(began_s + run_request.run_s - now_s), run_request.spread_s)


def ends_s(jobs: Sequence[J], *starts: ScheduledRun) -> Iterator[tuple[J, float]]:
    """When each job ends on servers that are free at `starts`: after the runs before it, its own, and a margin.

    The first free server takes the first job that is ready and not in the way of a slot (`is_in_the_way`), or waits for
    the next slot.

    The margin is the root of a sum of squared spreads, as the spreads of independent runs add up. A job adds its own to
    the least such sum, as it adds its run to the first free server; if runs are alike, that is the sum of its server.
    The margin of owed runs is elsewhere (the router's reserve).
    """
    free_s, variances = sorted(start.at_s for start in starts), sorted(start.spread_s**2 for start in starts)
    left, slots = list(jobs), sorted((job for job in jobs if job.ready_s > -math.inf), key=lambda job: job.ready_s)
    while left:
        job = _next(left, free_s, slots) if slots else left[0]
        left.remove(job)
        if slots and job in slots:
            slots.remove(job)
        end_s = _run(job, free_s)
        variance = variances[0] + job.run_request.spread_s**2
        heapq.heapreplace(variances, variance)
        yield job, end_s if job.run_request.is_owed else end_s + math.sqrt(variance)


def _next(left: Sequence[J], free_s: Sequence[float], slots: Sequence[J]) -> J:
    ready = (job for job in left if job.ready_s <= free_s[0] and not is_in_the_way(job, free_s, slots))
    return next(ready, None) or slots[0]


def _run(job: Job, free_s: list[float]) -> float:
    """Put the job on the first free server; returns when it ends."""
    end_s = max(free_s[0], job.ready_s) + job.run_request.known_run_s
    heapq.heapreplace(free_s, end_s)
    return end_s


def is_in_the_way(job: Job, free_s: Sequence[float], slots: Sequence[Job]) -> bool:
    """Whether the job, started on the first free server, would make a slot late behind which it has time to run.

    No slot is in the way of another. `free_s` are the times at which servers are free, in order; `slots` are in order
    of their `ready_s`.
    """
    run_s = job.run_request.known_run_s
    end_s = free_s[0] + run_s
    if not slots or slots[0].ready_s >= end_s or job.ready_s > -math.inf:
        return False
    without, with_it = list(free_s), list(free_s)
    heapq.heapreplace(with_it, end_s)
    for slot in slots:
        if slot.ready_s >= end_s:
            break
        usual_s, delayed_s = _run(slot, without), _run(slot, with_it)
        is_late = delayed_s > max(usual_s, slot.deadline_s + _ROUNDING_S)
        if is_late and slot.ready_s + slot.run_request.known_run_s + run_s <= job.deadline_s:
            return True
    return False


def slots_due(slots: Sequence[J], jobs: Collection[Job], *starts: ScheduledRun) -> list[J]:
    """The slots, in order of `ready_s`, that may begin before the device is done with the jobs.

    Distant slots are seldom needed.
    """
    due: list[J] = []
    if not slots:  # the usual case; what this buys: tests/benchmarks/test_agent_overhead.py
        return due
    busy_until_s = max(start.at_s for start in starts)
    work_s = sum(job.run_request.known_run_s for job in jobs)
    for slot in slots:
        if slot.ready_s >= busy_until_s + work_s:
            break
        due.append(slot)
        busy_until_s = max(busy_until_s, slot.deadline_s)
    return due


def latest_gap(
    taken: Sequence[tuple[float, float]], start_s: float, end_s: float, servers: int = 1
) -> tuple[float, float]:
    """The latest interval as long as [start_s, end_s] that ends by `end_s` and in which a server is always free.

    `taken` are intervals that occupy one server each.
    """
    length_s = end_s - start_s
    ends = [end_s, *sorted((start for start, _ in taken if start < end_s), reverse=True)]
    return next((end - length_s, end) for end in ends if _most_at_once(taken, end - length_s, end) < servers)


def _most_at_once(taken: Sequence[tuple[float, float]], start_s: float, end_s: float) -> int:
    within = [one for one in taken if one[0] < end_s and one[1] > start_s]
    return max(
        (sum(other[0] <= max(one[0], start_s) < other[1] or other is one for other in within) for one in within),
        default=0,
    )


def late(jobs: Sequence[Job], *starts: ScheduledRun) -> list[Job]:
    """The jobs that would end after their deadline if run in this order."""
    return [job for job, end_s in ends_s(jobs, *starts) if end_s > job.deadline_s + _ROUNDING_S]


def by_deadline(jobs: Collection[J]) -> list[J]:
    """Earliest deadline first, which on one server is in time whenever any order is (Jackson 1955)."""
    return sorted(jobs, key=lambda job: job.deadline_s)


def make_room(waiting: Sequence[Job], new: Job, *starts: ScheduledRun, is_free: bool) -> list[Job] | None:
    """The jobs that must give way so that `new` can join and all others stay in time; None if that is impossible.

    `waiting` are the admitted jobs, in any order; those already late do not count. Only lower ranks give way: while any
    job would be late, the lowest rank up to it gives up its longest run (the step of Moore & Hodgson 1968, which on one
    server loses the fewest). `new` itself is not tested if a server `is_free` for it, since it runs at once; owed jobs
    are never tested.
    """
    hopeless = {id(job) for job in late(by_deadline(waiting), *starts)} if waiting else set()
    jobs = by_deadline([*waiting, new])
    if is_free:
        hopeless.add(id(new))
        jobs = [new, *by_deadline(waiting)]
    leaving: list[Job] = []
    while True:
        broken = next((job for job in late(jobs, *starts) if id(job) not in hopeless), None)
        if broken is None:
            return leaving
        before = jobs[: jobs.index(broken) + 1]
        lower = [job for job in before if job.run_request.rank < new.run_request.rank and not job.run_request.is_owed]
        if not lower:
            return leaving if new.run_request.is_owed else None
        leaves = min(
            lower, key=lambda job: (job.run_request.rank, -job.run_request.known_run_s, -job.run_request.arrived_s)
        )
        jobs.remove(leaves)
        leaving.append(leaves)


def choose(waiting: Sequence[J], *starts: ScheduledRun, others: Sequence[Job] = ()) -> J:
    """The next job: the most urgent of the highest rank that can go first without making any job late.

    `others` are due too, but do not run now. If every rank has to wait, the most urgent job of all goes.
    """
    jobs = by_deadline(waiting)
    if len({job.run_request.rank for job in jobs}) > 1:
        everybody: list[Job] = by_deadline([*jobs, *others])
        hopeless = {id(job) for job in late(everybody, *starts)}
        for rank in sorted({job.run_request.rank for job in jobs}, reverse=True):
            first = next(job for job in jobs if job.run_request.rank == rank)
            rest = [job for job in everybody if job is not first]
            if {id(job) for job in late([first, *rest], *starts)} <= hopeless:
                return first
    return jobs[0]
