"""The schedule of the device against brute force, and a whole day of it in virtual time."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.routing.policy.settings import RANKS, Priority
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.routing.scheduling.schedulability import ScheduledRun, by_deadline, choose, late, make_room

NOW = ScheduledRun(0.0)


@dataclass(frozen=True, eq=False)
class Due:
    deadline_s: float
    run_request: RunRequest
    ready_s: float = -math.inf


def due(run_s: float, deadline_s: float, priority: Priority = "normal", *, is_owed: bool = False) -> Due:
    return Due(deadline_s, RunRequest(run_s=run_s, priority=priority, is_owed=is_owed))


RUNS = st.integers(1, 4).map(float)
DEADLINES = st.integers(1, 12).map(float)
PRIORITIES = st.sampled_from(sorted(RANKS))
ALIKE = st.builds(due, RUNS, DEADLINES)
RANKED = st.builds(due, RUNS, DEADLINES, PRIORITIES)


def feasible(jobs: list[Due]) -> bool:
    """Whether some order is in time for everyone, by trying them all."""
    return any(not late(order, NOW) for order in itertools.permutations(jobs))


def taken_on(asking: list[Due]) -> list[Due]:
    """Those that are in the queue after all have asked, one after the other, behind a run that ends at 0."""
    waiting: list[Due] = []
    for new in asking:
        leaving = make_room(waiting, new, NOW, is_free=False)
        if leaving is not None:
            waiting = [*(job for job in waiting if job not in leaving), new]
    return waiting


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(ALIKE, max_size=5))
def test_the_earliest_deadline_first_is_in_time_whenever_any_order_is(jobs: list[Due]) -> None:
    assert (not late(by_deadline(jobs), NOW)) == feasible(jobs)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(ALIKE, max_size=4), ALIKE)
def test_among_equals_a_job_is_refused_only_where_no_order_serves_all(asking: list[Due], new: Due) -> None:
    waiting = taken_on(asking)
    leaving = make_room(waiting, new, NOW, is_free=False)
    assert leaving == ([] if feasible([*waiting, new]) else None)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(RANKED, max_size=5), RANKED)
def test_only_lower_ranks_give_way_and_only_where_it_helps(asking: list[Due], new: Due) -> None:
    waiting = taken_on(asking)
    leaving = make_room(waiting, new, NOW, is_free=False)
    lower = [job for job in waiting if job.run_request.rank < new.run_request.rank]
    if leaving is None:
        assert not feasible([*(job for job in waiting if job not in lower), new])
        return
    assert all(job in lower for job in leaving)
    kept = [*(job for job in waiting if job not in leaving), new]
    assert feasible(kept)
    if leaving:
        assert not feasible([*waiting, new])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.builds(due, st.just(2.0), DEADLINES, st.just("low")), max_size=5), DEADLINES)
def test_of_equal_runs_the_fewest_give_way(asking: list[Due], deadline_s: float) -> None:
    waiting, new = taken_on(asking), due(2.0, deadline_s, "high")
    leaving = make_room(waiting, new, NOW, is_free=False)
    fewest = next(
        (
            count
            for count in range(len(waiting) + 1)
            for gone in itertools.combinations(waiting, count)
            if feasible([*(job for job in waiting if job not in gone), new])
        ),
        None,
    )
    assert (None if leaving is None else len(leaving)) == fewest


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(RANKED, min_size=1, max_size=6))
def test_whoever_goes_first_makes_nobody_late_and_is_of_the_highest_rank_that_can(asking: list[Due]) -> None:
    waiting = taken_on(asking) or asking[:1]
    first = choose(waiting, NOW)
    rest = [job for job in waiting if job is not first]
    if not late(by_deadline(waiting), NOW):
        assert not late([first, *by_deadline(rest)], NOW)
        for rank in {job.run_request.rank for job in rest if job.run_request.rank > first.run_request.rank}:
            urgent = min((job for job in rest if job.run_request.rank == rank), key=lambda job: job.deadline_s)
            others = by_deadline([job for job in waiting if job is not urgent])
            assert late([urgent, *others], NOW)
    assert all(first.deadline_s <= job.deadline_s for job in rest if job.run_request.rank == first.run_request.rank)


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 40).map(float), RUNS, st.integers(1, 20).map(float), PRIORITIES), max_size=40
)


@settings(max_examples=examples(200), deadline=None)
@given(ARRIVALS)
def test_whoever_is_taken_on_and_not_displaced_ends_in_time(
    arrivals: list[tuple[float, float, float, Priority]],
) -> None:
    waiting: list[Due] = []
    running, free_at_s = None, 0.0
    displaced_by: list[tuple[int, int]] = []
    for at_s, run_s, allowed_s, priority in [*sorted(arrivals), (math.inf, 1.0, 1.0, "normal")]:
        while running is not None and free_at_s <= at_s:
            assert free_at_s <= running.deadline_s
            running = None
            if waiting:
                running = choose(waiting, ScheduledRun(free_at_s))
                waiting.remove(running)
                free_at_s += running.run_request.run_s
        if math.isinf(at_s):
            break
        new = due(run_s, at_s + allowed_s, priority)
        if run_s > allowed_s:
            continue  # the router refuses it
        leaving = make_room(waiting, new, ScheduledRun(max(at_s, free_at_s)), is_free=running is None)
        if leaving is None:
            continue
        displaced_by += [(job.run_request.rank, new.run_request.rank) for job in leaving]
        waiting = [job for job in waiting if job not in leaving]
        if running is None:
            running, free_at_s = new, at_s + run_s
        else:
            waiting.append(new)
    assert not waiting
    assert all(lower < higher for lower, higher in displaced_by)


def test_the_spreads_of_runs_add_up_in_quadrature() -> None:
    job = Due(math.inf, RunRequest(run_s=1.0, spread_s=0.3))
    tight = [Due(3.0 + math.hypot(0.3, 0.3, 0.3) - 1e-6, job.run_request)]
    assert late([job, job, Due(3.0 + math.hypot(0.3, 0.3, 0.3) + 1e-6, job.run_request)], NOW) == []
    assert late([job, job, *tight], NOW) == tight


def test_a_run_that_is_overdue_is_expected_to_need_as_long_again() -> None:
    run_request = RunRequest(run_s=1.0, spread_s=0.1)
    assert ScheduledRun.after(run_request, 10.0, 10.25) == ScheduledRun(11.0, 0.1)
    assert ScheduledRun.after(run_request, 10.0, 14.0) == ScheduledRun(17.0, 0.1)
    assert ScheduledRun.after(RunRequest(), 10.0, 14.0) == ScheduledRun(14.0)


@pytest.mark.parametrize("priority", ["low", "normal", "high"])
def test_what_is_owed_is_taken_on_whatever_it_costs_its_equals(priority: Priority) -> None:
    waiting = [due(3.0, 3.0, priority)]
    assert make_room(waiting, due(3.0, 4.0, priority), NOW, is_free=False) is None
    assert make_room(waiting, due(3.0, 4.0, priority, is_owed=True), NOW, is_free=False) == []


def test_what_is_owed_gives_way_to_nobody() -> None:
    owed = due(3.0, 3.0, "low", is_owed=True)
    assert make_room([owed], due(3.0, 4.0, "high"), NOW, is_free=False) is None
    assert make_room([due(3.0, 3.0, "low")], due(3.0, 4.0, "high"), NOW, is_free=False) is not None


def test_who_is_late_already_keeps_nobody_out() -> None:
    late_already = due(5.0, 1.0)
    assert make_room([late_already], due(1.0, 7.0), NOW, is_free=False) == []
