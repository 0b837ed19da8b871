"""Several runs at one time: the arithmetic against simulations of its own, and the scheduler itself on whole days."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.edge.virtual_scheduler import Arrival, Reserved, VirtualScheduler
from upwell.shared.errors import Refused, Superseded
from upwell.shared.routing.policy.settings import RANKS
from upwell.shared.routing.scheduling.run_queue import QueuedRun, RunQueue
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.routing.scheduling.schedulability import (
    Job,
    ScheduledRun,
    by_deadline,
    choose,
    ends_s,
    late,
    latest_gap,
    make_room,
)


@dataclass(frozen=True, eq=False)
class Due:
    deadline_s: float
    run_request: RunRequest
    ready_s: float = -math.inf


SERVERS = st.integers(1, 3)
RUNS = st.integers(1, 5).map(float)
SPREADS = st.sampled_from([0.0, 0.0, 1.0, 2.0])
RUN_REQUESTS = st.builds(
    RunRequest,
    run_s=RUNS | st.just(math.nan),
    spread_s=SPREADS,
    priority=st.sampled_from(sorted(RANKS)),
    stream=st.sampled_from([None, None, None, "dock"]),
)
ALLOWED = st.integers(1, 20).map(float)
JOBS = st.builds(Due, ALLOWED, RUN_REQUESTS)
STARTS = st.lists(st.builds(ScheduledRun, st.integers(0, 6).map(float), SPREADS), min_size=1, max_size=3)
INSTANTS = st.integers(0, 30).map(float)
ARRIVALS = st.builds(Arrival, INSTANTS, RUN_REQUESTS, ALLOWED)
HASTY = st.builds(
    Arrival,
    INSTANTS,
    RUN_REQUESTS,
    ALLOWED,
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([math.inf, 1.0, 4.0]),
)
RESERVATIONS = st.builds(
    Reserved, INSTANTS, st.integers(1, 15).map(float), RUNS, st.booleans(), st.sampled_from([0.0, 0.0, 2.0, 5.0])
)


def by_the_clock(jobs: Sequence[Due], free_s: Sequence[float]) -> dict[Due, float]:
    """When each job ends if a clock ticks and each idle server then takes the next in the row."""
    row, servers, ends = list(jobs), list(free_s), dict[Due, float]()
    for now in range(1000):
        for index in range(len(servers)):
            while row and servers[index] <= now:
                job = row.pop(0)
                ends[job] = servers[index] = now + job.run_request.known_run_s
    return ends


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(JOBS, max_size=8), STARTS)
def test_each_job_goes_to_the_server_that_is_free_first(jobs: list[Due], starts: list[ScheduledRun]) -> None:
    certain = [Due(job.deadline_s, replace(job.run_request, spread_s=0.0)) for job in jobs]
    ends = dict(ends_s(certain, *(ScheduledRun(start.at_s) for start in starts)))
    assert ends == by_the_clock(certain, [start.at_s for start in starts])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(JOBS, max_size=8), STARTS)
def test_each_job_adds_its_spread_to_the_least_there_is(jobs: list[Due], starts: list[ScheduledRun]) -> None:
    usual = by_the_clock(jobs, [start.at_s for start in starts])
    squares = [start.spread_s**2 for start in starts]
    for job, end_s in ends_s(jobs, *starts):
        squares.sort()
        squares[0] += job.run_request.spread_s**2
        assert math.isclose(end_s, usual[job] + math.sqrt(squares[0]))


@settings(max_examples=examples(250), deadline=None)
@given(st.data(), st.lists(JOBS, max_size=8), STARTS)
def test_nobody_ends_later_where_runs_are_shorter_or_others_leave(
    data: st.DataObject, jobs: list[Due], starts: list[ScheduledRun]
) -> None:
    """Each job, with its margin: what is taken on stays in time."""
    stay = [job for job in jobs if data.draw(st.booleans())]
    shorter = {
        job: Due(
            job.deadline_s, replace(job.run_request, run_s=job.run_request.known_run_s * data.draw(st.floats(0, 1)))
        )
        for job in stay
    }
    sooner = [replace(start, at_s=start.at_s * data.draw(st.floats(0, 1))) for start in starts]
    before, after = dict(ends_s(jobs, *starts)), dict(ends_s(list(shorter.values()), *sooner))
    assert all(after[shorter[job]] <= before[job] + 1e-9 for job in stay)


def old_ends_s(jobs: Sequence[Job], start: ScheduledRun) -> Iterator[tuple[Job, float]]:
    """One server, as it was before there were several; only a slot that would be late is treated differently."""
    at_s, variance, left = start.at_s, start.spread_s**2, list(jobs)
    while left:
        job = next((one for one in left if one.ready_s <= at_s), None) or min(left, key=lambda one: one.ready_s)
        left.remove(job)
        at_s = max(at_s, job.ready_s) + job.run_request.known_run_s
        variance += job.run_request.spread_s**2
        yield job, at_s if job.run_request.is_owed else at_s + math.sqrt(variance)


def old_late(jobs: Sequence[Job], start: ScheduledRun) -> list[Job]:
    return [job for job, end_s in old_ends_s(jobs, start) if end_s > job.deadline_s + 1e-9]


def old_make_room(waiting: Sequence[Job], new: Job, start: ScheduledRun) -> list[Job] | None:
    hopeless = old_late(by_deadline(waiting), start)
    jobs, leaving = by_deadline([*waiting, new]), list[Job]()
    while True:
        broken = next((job for job in old_late(jobs, start) if job not in hopeless), None)
        if broken is None:
            return leaving
        before = jobs[: jobs.index(broken) + 1]
        lower = [job for job in before if job.run_request.rank < new.run_request.rank and not job.run_request.is_owed]
        if not lower:
            return leaving if new.run_request.is_owed else None
        leaving.append(
            min(lower, key=lambda job: (job.run_request.rank, -job.run_request.known_run_s, -job.run_request.arrived_s))
        )
        jobs.remove(leaving[-1])


def old_choose(waiting: Sequence[Due], start: ScheduledRun) -> Due:
    jobs = by_deadline(waiting)
    hopeless = old_late(jobs, start)
    for rank in sorted({job.run_request.rank for job in jobs}, reverse=True):
        first = next(job for job in jobs if job.run_request.rank == rank)
        rest = [job for job in jobs if job is not first]
        if set(old_late([first, *rest], start)) <= set(hopeless):
            return first
    return jobs[0]


SLOTS = st.builds(
    lambda ready_s, run_s: Due(ready_s + run_s, RunRequest(run_s=run_s, is_owed=True), ready_s),
    st.integers(0, 30).map(float),
    RUNS,
)


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(JOBS, max_size=6), st.lists(SLOTS, max_size=2), st.builds(ScheduledRun, ALLOWED, SPREADS))
def test_one_server_ends_when_it_did(jobs: list[Due], slots: list[Due], start: ScheduledRun) -> None:
    due = [*jobs, *slots]
    if not any(job in slots for job in old_late(due, start)):
        assert list(ends_s(due, start)) == list(old_ends_s(due, start))
    assert late(jobs, start) == old_late(jobs, start)


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(JOBS, max_size=6), JOBS, st.builds(ScheduledRun, ALLOWED, SPREADS))
def test_one_server_takes_on_and_chooses_whom_it_did(waiting: list[Due], new: Due, start: ScheduledRun) -> None:
    assert make_room(waiting, new, start, is_free=False) == old_make_room(waiting, new, start)
    assert choose([*waiting, new], start) is old_choose([*waiting, new], start)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=8), st.integers(0, 12), RUNS, SERVERS)
def test_a_slot_is_the_latest_that_leaves_a_server_for_it(
    others: list[tuple[int, int]], end: int, length_s: float, servers: int
) -> None:
    taken = [(float(start), float(start + length)) for start, length in others]

    def is_free(end_s: float) -> bool:
        halves = [end_s - length_s + 0.5 * index for index in range(round(2 * length_s))]
        return all(sum(start <= at_s < until for start, until in taken) < servers for at_s in halves)

    found = latest_gap(taken, end - length_s, float(end), servers)
    ends = [end - 0.5 * index for index in range(200)]
    assert found == next((end_s - length_s, end_s) for end_s in ends if is_free(end_s))


def assert_kept(device: VirtualScheduler) -> None:
    """Nobody who was surely in time is late, nobody is forgotten, and never more runs than there may be."""
    queue = device.queue
    assert not [*queue.waiting, *queue.running, *queue.slots]
    assert device.most_at_once <= queue.instances
    assert not device.idled
    for request in device.requests:
        if request.error is None and not request.has_left:
            assert not math.isnan(request.ended_s)
            assert request.ended_s <= request.run.deadline_s + 1e-6 or not request.is_sure
        elif request.is_sure and not request.has_left:
            assert isinstance(request.error, (Refused, Superseded))
            assert isinstance(request.error, Superseded) or not request.run.run_request.is_owed


@settings(max_examples=examples(300), deadline=None)
@given(SERVERS, st.lists(HASTY, max_size=25))
def test_whoever_is_taken_on_is_in_time_though_runs_end_early_and_others_leave(
    instances: int, day: list[Arrival | Reserved]
) -> None:
    device = VirtualScheduler(instances)
    device.play(day)
    assert_kept(device)


@settings(max_examples=examples(300), deadline=None)
@given(SERVERS, st.lists(HASTY | RESERVATIONS, max_size=25))
def test_who_is_taken_on_is_in_time_and_reservations_are_kept(instances: int, day: list[Arrival | Reserved]) -> None:
    device = VirtualScheduler(instances)
    device.play(day)
    assert_kept(device)


RUNNING = st.lists(st.builds(QueuedRun, ALLOWED, RUN_REQUESTS), max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(SERVERS, RUNNING, st.lists(st.builds(QueuedRun, ALLOWED, RUN_REQUESTS), max_size=1), INSTANTS)
def test_a_lone_waiting_run_goes_next_as_the_plan_of_the_device_says(
    instances: int, running: list[QueuedRun], waiting: list[QueuedRun], now_s: float
) -> None:
    queue = RunQueue(instances)
    queue.running, queue.waiting = running, waiting
    for run in running:
        run.began_s = 0.0
    assert queue._next(now_s) is queue._planned(now_s)


@settings(max_examples=examples(100), deadline=None)
@given(SERVERS, RUNS, st.integers(1, 12))
def test_as_many_are_taken_on_as_fit(instances: int, run_s: float, rounds: int) -> None:
    """Of a crowd with one deadline: so many rounds on each server."""
    device = VirtualScheduler(instances)
    device.play([Arrival(0.0, RunRequest(run_s=run_s), rounds * run_s) for _ in range(instances * rounds + 5)])
    served = [request for request in device.requests if request.error is None]
    assert len(served) == instances * rounds
    assert device.most_at_once == instances
    assert_kept(device)


def test_two_servers_may_refuse_whom_another_order_had_served() -> None:
    """What the earliest deadline first loses on several servers."""
    short, also_short, long = (
        Due(due_s, RunRequest(run_s=run_s)) for due_s, run_s in ((2.0, 1.0), (2.0, 1.0), (2.5, 2.0))
    )
    servers = (ScheduledRun(0.0), ScheduledRun(0.0))
    assert late([short, also_short, long], *servers) == [long]
    assert late([long, short, also_short], *servers) == []
    assert make_room([short, also_short], long, *servers, is_free=False) is None
