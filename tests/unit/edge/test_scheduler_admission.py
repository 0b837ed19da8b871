"""Admission to the scheduler: who is let in will be in time, who gives way, and who replaces whom."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest

from tests.unit.edge.schedulers import PATIENT_S, assert_free, running, soon, waiting
from upwell.edge.admission.edf_scheduler import EdfScheduler
from upwell.shared.errors import Refused, Superseded, UpwellError
from upwell.shared.routing.scheduling.run_request import RunRequest


def test_who_could_not_be_in_time_is_refused_when_asking() -> None:
    scheduler = EdfScheduler()
    with running(scheduler, 100.0):
        with (
            pytest.raises(Refused, match=r"50000\.\d ms are left, but .* with the 1 requests"),
            scheduler.acquire(soon(50.0), RunRequest(run_s=10.0)),
        ):
            pytest.fail("it got a turn")
        assert scheduler.queue.ahead == 1
    assert_free(scheduler)


def test_who_would_make_others_late_is_refused() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with running(scheduler, 10.0) as release, waiting(scheduler, soon(25.0), RunRequest(run_s=10.0), log, "taken on"):
        with (
            pytest.raises(Refused, match="requests admitted earlier would be late"),
            scheduler.acquire(soon(22.0), RunRequest(run_s=10.0)),
        ):
            pytest.fail("it got a turn")
        release.set()
    assert log == ["taken on"]
    assert_free(scheduler)


def test_a_free_scheduler_is_given_whatever_the_prediction() -> None:
    scheduler = EdfScheduler()
    with scheduler.acquire(soon(1.0), RunRequest(run_s=100.0)):
        assert scheduler.queue.ahead == 1
    assert_free(scheduler)


def test_who_does_not_know_its_time_waits() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with running(scheduler, math.nan) as release, waiting(scheduler, soon(PATIENT_S), RunRequest(), log, "unknown"):
        release.set()
    assert log == ["unknown"]


def test_a_higher_priority_goes_first_where_all_stay_in_time() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    run_requests = {one: RunRequest(run_s=0.1, priority=one) for one in ("low", "normal", "high")}
    with ExitStack() as stack, running(scheduler, 1.0) as release:
        for index, (name, run_request) in enumerate(run_requests.items()):
            stack.enter_context(waiting(scheduler, soon(PATIENT_S + index), run_request, log, name))
        release.set()
    assert log == ["high", "normal", "low"]


def test_a_lower_priority_that_was_taken_on_goes_first_where_it_would_be_late_otherwise() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with ExitStack() as stack, running(scheduler, 10.0) as release:
        urgent, patient = RunRequest(run_s=10.0, priority="low"), RunRequest(run_s=10.0, priority="high")
        stack.enter_context(waiting(scheduler, soon(25.0), urgent, log, "low"))
        stack.enter_context(waiting(scheduler, soon(100.0), patient, log, "high"))
        scheduler.queue.running[
            0
        ].began_s -= 10.0  # as if the run had taken its time: what waits has 25 s left and needs 10 of them
        for ticket in scheduler.queue.waiting:
            ticket.deadline_s -= 10.0
        release.set()
    assert log == ["low", "high"]


def test_a_higher_priority_takes_the_place_of_a_lower_one_which_is_told_at_once() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    low, high = (RunRequest(run_s=10.0, priority=one) for one in ("low", "high"))
    with ExitStack() as stack, running(scheduler, 10.0) as release:
        thread = stack.enter_context(waiting(scheduler, soon(22.0), low, log, "low"))
        stack.enter_context(waiting(scheduler, soon(22.5), high, log, "high"))
        thread.join(PATIENT_S)
        assert log == ["low: Refused"]
        release.set()
    assert log == ["low: Refused", "high"]
    assert_free(scheduler)


def test_no_priority_takes_the_place_of_its_equal() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with (
        running(scheduler, 10.0) as release,
        waiting(scheduler, soon(22.0), RunRequest(run_s=10.0, priority="high"), log, "first"),
    ):
        with pytest.raises(Refused), scheduler.acquire(soon(22.5), RunRequest(run_s=10.0, priority="high")):
            pytest.fail("it got a turn")
        release.set()
    assert log == ["first"]


def test_a_newer_request_of_a_stream_replaces_the_one_that_waits() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    old, new = (RunRequest(run_s=1.0, stream="dock", arrived_s=at_s) for at_s in (1.0, 2.0))
    other = RunRequest(run_s=1.0, stream="gate", arrived_s=1.5)
    with ExitStack() as stack, running(scheduler, 1.0) as release:
        stack.enter_context(waiting(scheduler, soon(30.0), other, log, "other"))
        thread = stack.enter_context(waiting(scheduler, soon(30.0), old, log, "old"))
        stack.enter_context(waiting(scheduler, soon(31.0), new, log, "new"))
        thread.join(PATIENT_S)
        assert (log, scheduler.queue.ahead) == (["old: Superseded"], 3)
        with pytest.raises(Superseded), scheduler.acquire(soon(30.0), old):
            pytest.fail("an old frame replaced a newer one")
        release.set()
    assert log == ["old: Superseded", "other", "new"]
    assert_free(scheduler)


def takes(scheduler: EdfScheduler, deadline_s: float, run_request: RunRequest) -> bool:
    """Whether there is a turn."""
    try:
        with scheduler.acquire(deadline_s, run_request):
            return True
    except UpwellError:
        return False


def test_a_request_that_runs_is_not_replaced() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    run_request = RunRequest(run_s=0.0, stream="dock")
    with scheduler.acquire(math.inf, run_request), waiting(scheduler, soon(0.05), run_request, log, "next"):
        pass
    assert log in (["next"], ["next: DeadlineExceeded"])
    assert_free(scheduler)


def test_a_newer_request_that_cannot_be_in_time_replaces_nobody() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    old, new = (RunRequest(run_s=run_s, stream="dock", arrived_s=run_s) for run_s in (1.0, 50.0))
    with running(scheduler, 10.0) as release, waiting(scheduler, soon(30.0), old, log, "old"):
        with pytest.raises(Refused), scheduler.acquire(soon(30.0), new):
            pytest.fail("it got a turn")
        release.set()
    assert log == ["old"]


def test_what_the_request_would_wait_for_is_counted_by_its_rank_deadline_and_stream() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    far_s = soon(1000.0)
    with ExitStack() as stack, running(scheduler, 1.0) as release:
        for name, later_s, run_request in (
            ("soon", 1.0, RunRequest(run_s=0.0)),
            ("late", 5.0, RunRequest(run_s=0.0)),
            ("high", 9.0, RunRequest(run_s=0.0, priority="high")),
            ("low", 1.0, RunRequest(run_s=0.0, priority="low")),
            ("dock", 1.0, RunRequest(run_s=0.0, stream="dock")),
        ):
            stack.enter_context(waiting(scheduler, far_s + later_s, run_request, log, name))
        assert scheduler.queue.ahead == 6
        assert scheduler.ahead_of(far_s + 3, RunRequest()) == 4  # the run, soon, high, dock
        assert scheduler.ahead_of(far_s + 3, RunRequest(stream="dock")) == 3
        assert scheduler.ahead_of(far_s + 6, RunRequest()) == 5
        assert scheduler.ahead_of(far_s + 6, RunRequest(priority="high")) == 1
        assert scheduler.ahead_of(math.inf, RunRequest(priority="low")) == 6
        release.set()
    assert scheduler.ahead_of(0.0, RunRequest()) == 0


def test_who_cannot_be_in_time_any_more_is_told_before_it_costs_the_others_anything() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with ExitStack() as stack, running(scheduler, 1.0) as release:
        stack.enter_context(waiting(scheduler, soon(3.0), RunRequest(run_s=1.0), log, "slow"))
        stack.enter_context(waiting(scheduler, soon(PATIENT_S), RunRequest(run_s=1.0), log, "patient"))
        scheduler.queue.waiting[0].deadline_s -= 2.5  # as if the run before had taken 2.5 s longer than predicted
        release.set()
    assert sorted(log) == ["patient", "slow: DeadlineExceeded"]


def test_what_is_owed_waits_until_its_very_deadline() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with (
        running(scheduler, 100.0) as release,
        waiting(scheduler, soon(PATIENT_S), RunRequest(1000.0, is_owed=True), log, "owed"),
    ):
        release.set()
    assert log == ["owed"]


def test_what_is_owed_neither_replaces_nor_is_replaced() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    run_requests = [
        RunRequest(run_s=0.1, stream="dock", arrived_s=float(index), is_owed=index != 1) for index in range(3)
    ]
    with ExitStack() as stack, running(scheduler, 0.1) as release:
        for index, run_request in enumerate(run_requests):
            stack.enter_context(waiting(scheduler, soon(PATIENT_S + index), run_request, log, str(index)))
        assert scheduler.queue.ahead == 4
        release.set()
    assert log == ["0", "1", "2"]


def test_a_turn_stays_clear_of_a_reservation_that_it_would_run_into() -> None:
    scheduler = EdfScheduler()
    with scheduler.reserve(soon(5.0), soon(10.0)):
        assert takes(scheduler, soon(100.0), RunRequest(run_s=4.0))
        with pytest.raises(Refused), scheduler.acquire(soon(12.0), RunRequest(run_s=8.0)):
            pytest.fail("it got a turn")
    assert takes(scheduler, soon(100.0), RunRequest(run_s=8.0))
    assert_free(scheduler)
