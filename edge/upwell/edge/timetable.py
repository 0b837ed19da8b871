"""Who runs when on the device, who is in time then, and who gives way: arithmetic on what is queued.

Pure: instants are arguments. The lane asks under its lock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeVar

from upwell.shared.routing.settings import Priority

RANKS = MappingProxyType({"low": 0, "normal": 1, "high": 2})
"""Priority -> rank; a higher one goes first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one request asks of the device.

    `run_s` is how long its run takes as a rule, `spread_s` how much longer it takes in a bad case; a `run_s` of NaN is
    unknown, and what is unknown is tried. Requests of one `stream` (None: of none) replace each other while they wait,
    by `arrived_s`. `is_owed` marks a run that was promised before (it stands in for the cloud): it is never
    refused, and neither replaces nor is replaced.
    """

    run_s: float = math.nan
    spread_s: float = 0.0
    priority: Priority = "normal"
    stream: Hashable | None = None
    arrived_s: float = 0.0
    is_owed: bool = False

    @property
    def rank(self) -> int:
        """Of its priority."""
        return RANKS[self.priority]

    @property
    def known_run_s(self) -> float:
        """`run_s`, or 0 where it is unknown."""
        return 0.0 if math.isnan(self.run_s) else self.run_s


class Job(Protocol):
    """A run that is due at `deadline_s` and can begin at `ready_s`."""

    @property
    def ready_s(self) -> float:
        """When it can begin; negative infinity if now."""

    @property
    def deadline_s(self) -> float:
        """When it must have ended."""

    @property
    def claim(self) -> Claim:
        """What it needs."""


J = TypeVar("J", bound=Job)
_ROUNDING_S = 1e-9  # a run that fills its slot exactly is in time, however the sum is rounded


@dataclass(frozen=True, slots=True)
class Start:
    """The device is free at `at_s` as a rule; `spread_s` later in a bad case."""

    at_s: float
    spread_s: float = 0.0

    @classmethod
    def after(cls, claim: Claim, began_s: float, now_s: float) -> Start:
        """Behind a run that began at `began_s`.

        A run that is overdue is expected to need as long again as it is overdue: a device that hangs takes nobody on.
        """
        if math.isnan(claim.run_s):
            return cls(now_s)
        return cls(now_s + abs(began_s + claim.run_s - now_s), claim.spread_s)


def ends_s(jobs: Sequence[Job], start: Start) -> Iterator[tuple[Job, float]]:
    """When each job will have ended, run one after the other, the first that is ready next: sum of runs, and a margin.

    The margin is the root of the sum of the squared spreads: the spreads of independent runs add up in quadrature.
    What is owed has its margin elsewhere (the router's reserve).
    """
    at_s, variance, left = start.at_s, start.spread_s**2, list(jobs)
    while left:
        job = next((one for one in left if one.ready_s <= at_s), None) or min(left, key=lambda one: one.ready_s)
        left.remove(job)
        at_s = max(at_s, job.ready_s) + job.claim.known_run_s
        variance += job.claim.spread_s**2
        yield job, at_s if job.claim.is_owed else at_s + math.sqrt(variance)


def late(jobs: Sequence[Job], start: Start) -> list[Job]:
    """The jobs that would end after their deadline if run in this order."""
    return [job for job, end_s in ends_s(jobs, start) if end_s > job.deadline_s + _ROUNDING_S]


def by_deadline(jobs: Collection[J]) -> list[J]:
    """In the order of the earliest deadline first, which is in time whenever any order is (Jackson 1955)."""
    return sorted(jobs, key=lambda job: job.deadline_s)


def make_room(waiting: Sequence[Job], new: Job, start: Start, *, is_free: bool) -> list[Job] | None:
    """Who must give way so that `new` can join and everyone else stays in time; None where nothing helps.

    `waiting` holds the jobs that were taken on, in any order; those that are late already count for nothing. Only lower
    ranks give way: as long as somebody would be late, the lowest rank up to there gives up its longest run (the step of
    Moore & Hodgson 1968, which loses the fewest). `new` itself is not tested where the device `is_free`, since nobody
    stands before it; nor is anybody tested where it is owed.
    """
    hopeless = {id(job) for job in late(by_deadline(waiting), start)}
    if is_free:
        hopeless.add(id(new))
    jobs = by_deadline([*waiting, new])
    leaving: list[Job] = []
    while True:
        broken = next((job for job in late(jobs, start) if id(job) not in hopeless), None)
        if broken is None:
            return leaving
        before = jobs[: jobs.index(broken) + 1]
        lower = [job for job in before if job.claim.rank < new.claim.rank and not job.claim.is_owed]
        if not lower:
            return leaving if new.claim.is_owed else None
        leaves = min(lower, key=lambda job: (job.claim.rank, -job.claim.known_run_s, -job.claim.arrived_s))
        jobs.remove(leaves)
        leaving.append(leaves)


def choose(waiting: Sequence[J], start: Start, others: Sequence[Job] = ()) -> J:
    """Who runs next: the most urgent of the highest rank that can go first without making anyone late.

    `others` are due too, and not ready to run. Where every rank has to wait its turn, the most urgent of all goes.
    """
    jobs = by_deadline(waiting)
    if len({job.claim.rank for job in jobs}) > 1:
        everybody: list[Job] = by_deadline([*jobs, *others])
        hopeless = {id(job) for job in late(everybody, start)}
        for rank in sorted({job.claim.rank for job in jobs}, reverse=True):
            first = next(job for job in jobs if job.claim.rank == rank)
            rest = [job for job in everybody if job is not first]
            if {id(job) for job in late([first, *rest], start)} <= hopeless:
                return first
    return jobs[0]
