"""Admission to the lane: who is let in will be in time, who gives way, and who replaces whom."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest

from tests.unit.edge.lanes import PATIENT_S, assert_free, running, soon, waiting
from upwell.edge.lane import Lane
from upwell.edge.timetable import Claim
from upwell.shared.errors import Refused, Superseded, UpwellError


def test_who_could_not_be_in_time_is_refused_when_asking() -> None:
    lane = Lane()
    with running(lane, 100.0):
        with (
            pytest.raises(Refused, match=r"50000\.\d ms are left and .* with the 1 requests"),
            lane.turn(soon(50.0), Claim(run_s=10.0)),
        ):
            pytest.fail("it got a turn")
        assert lane.ahead == 1
    assert_free(lane)


def test_who_would_make_others_late_is_refused() -> None:
    lane, log = Lane(), list[str]()
    with running(lane, 10.0) as release, waiting(lane, soon(25.0), Claim(run_s=10.0), log, "taken on"):
        with pytest.raises(Refused, match="others, taken on before"), lane.turn(soon(22.0), Claim(run_s=10.0)):
            pytest.fail("it got a turn")
        release.set()
    assert log == ["taken on"]
    assert_free(lane)


def test_a_free_lane_is_given_whatever_the_prediction() -> None:
    lane = Lane()
    with lane.turn(soon(1.0), Claim(run_s=100.0)):
        assert lane.ahead == 1
    assert_free(lane)


def test_who_does_not_know_its_time_waits() -> None:
    lane, log = Lane(), list[str]()
    with running(lane, math.nan) as release, waiting(lane, soon(PATIENT_S), Claim(), log, "unknown"):
        release.set()
    assert log == ["unknown"]


def test_a_higher_priority_goes_first_where_all_stay_in_time() -> None:
    lane, log = Lane(), list[str]()
    claims = {one: Claim(run_s=0.1, priority=one) for one in ("low", "normal", "high")}
    with ExitStack() as stack, running(lane, 1.0) as release:
        for index, (name, claim) in enumerate(claims.items()):
            stack.enter_context(waiting(lane, soon(PATIENT_S + index), claim, log, name))
        release.set()
    assert log == ["high", "normal", "low"]


def test_a_lower_priority_that_was_taken_on_goes_first_where_it_would_be_late_otherwise() -> None:
    lane, log = Lane(), list[str]()
    with ExitStack() as stack, running(lane, 10.0) as release:
        urgent, patient = Claim(run_s=10.0, priority="low"), Claim(run_s=10.0, priority="high")
        stack.enter_context(waiting(lane, soon(25.0), urgent, log, "low"))
        stack.enter_context(waiting(lane, soon(100.0), patient, log, "high"))
        lane._running[
            0
        ].began_s -= 10.0  # as if the run had taken its time: what waits has 25 s left and needs 10 of them
        for ticket in lane._waiting:
            ticket.deadline_s -= 10.0
        release.set()
    assert log == ["low", "high"]


def test_a_higher_priority_takes_the_place_of_a_lower_one_which_is_told_at_once() -> None:
    lane, log = Lane(), list[str]()
    low, high = (Claim(run_s=10.0, priority=one) for one in ("low", "high"))
    with ExitStack() as stack, running(lane, 10.0) as release:
        thread = stack.enter_context(waiting(lane, soon(22.0), low, log, "low"))
        stack.enter_context(waiting(lane, soon(22.5), high, log, "high"))
        thread.join(PATIENT_S)
        assert log == ["low: Refused"]
        release.set()
    assert log == ["low: Refused", "high"]
    assert_free(lane)


def test_no_priority_takes_the_place_of_its_equal() -> None:
    lane, log = Lane(), list[str]()
    with running(lane, 10.0) as release, waiting(lane, soon(22.0), Claim(run_s=10.0, priority="high"), log, "first"):
        with pytest.raises(Refused), lane.turn(soon(22.5), Claim(run_s=10.0, priority="high")):
            pytest.fail("it got a turn")
        release.set()
    assert log == ["first"]


def test_a_newer_request_of_a_stream_replaces_the_one_that_waits() -> None:
    lane, log = Lane(), list[str]()
    old, new = (Claim(run_s=1.0, stream="dock", arrived_s=at_s) for at_s in (1.0, 2.0))
    other = Claim(run_s=1.0, stream="gate", arrived_s=1.5)
    with ExitStack() as stack, running(lane, 1.0) as release:
        stack.enter_context(waiting(lane, soon(30.0), other, log, "other"))
        thread = stack.enter_context(waiting(lane, soon(30.0), old, log, "old"))
        stack.enter_context(waiting(lane, soon(31.0), new, log, "new"))
        thread.join(PATIENT_S)
        assert (log, lane.ahead) == (["old: Superseded"], 3)
        with pytest.raises(Superseded), lane.turn(soon(30.0), old):
            pytest.fail("an old frame replaced a newer one")
        release.set()
    assert log == ["old: Superseded", "other", "new"]
    assert_free(lane)


def takes(lane: Lane, deadline_s: float, claim: Claim) -> bool:
    """Whether there is a turn."""
    try:
        with lane.turn(deadline_s, claim):
            return True
    except UpwellError:
        return False


def test_a_request_that_runs_is_not_replaced() -> None:
    lane, log = Lane(), list[str]()
    claim = Claim(run_s=0.0, stream="dock")
    with lane.turn(math.inf, claim), waiting(lane, soon(0.05), claim, log, "next"):
        pass
    assert log in (["next"], ["next: DeadlineExceeded"])
    assert_free(lane)


def test_a_newer_request_that_cannot_be_in_time_replaces_nobody() -> None:
    lane, log = Lane(), list[str]()
    old, new = (Claim(run_s=run_s, stream="dock", arrived_s=run_s) for run_s in (1.0, 50.0))
    with running(lane, 10.0) as release, waiting(lane, soon(30.0), old, log, "old"):
        with pytest.raises(Refused), lane.turn(soon(30.0), new):
            pytest.fail("it got a turn")
        release.set()
    assert log == ["old"]


def test_what_the_request_would_wait_for_is_counted_by_its_rank_deadline_and_stream() -> None:
    lane, log = Lane(), list[str]()
    far_s = soon(1000.0)
    with ExitStack() as stack, running(lane, 1.0) as release:
        for name, later_s, claim in (
            ("soon", 1.0, Claim(run_s=0.0)),
            ("late", 5.0, Claim(run_s=0.0)),
            ("high", 9.0, Claim(run_s=0.0, priority="high")),
            ("low", 1.0, Claim(run_s=0.0, priority="low")),
            ("dock", 1.0, Claim(run_s=0.0, stream="dock")),
        ):
            stack.enter_context(waiting(lane, far_s + later_s, claim, log, name))
        assert lane.ahead == 6
        assert lane.ahead_of(far_s + 3, Claim()) == 4  # the run, soon, high, dock
        assert lane.ahead_of(far_s + 3, Claim(stream="dock")) == 3
        assert lane.ahead_of(far_s + 6, Claim()) == 5
        assert lane.ahead_of(far_s + 6, Claim(priority="high")) == 1
        assert lane.ahead_of(math.inf, Claim(priority="low")) == 6
        release.set()
    assert lane.ahead_of(0.0, Claim()) == 0


def test_who_cannot_be_in_time_any_more_is_told_before_it_costs_the_others_anything() -> None:
    lane, log = Lane(), list[str]()
    with ExitStack() as stack, running(lane, 1.0) as release:
        stack.enter_context(waiting(lane, soon(3.0), Claim(run_s=1.0), log, "slow"))
        stack.enter_context(waiting(lane, soon(PATIENT_S), Claim(run_s=1.0), log, "patient"))
        lane._waiting[0].deadline_s -= 2.5  # as if the run before had taken 2.5 s longer than predicted
        release.set()
    assert sorted(log) == ["patient", "slow: DeadlineExceeded"]


def test_what_is_owed_waits_until_its_very_deadline() -> None:
    lane, log = Lane(), list[str]()
    with running(lane, 100.0) as release, waiting(lane, soon(PATIENT_S), Claim(1000.0, is_owed=True), log, "owed"):
        release.set()
    assert log == ["owed"]


def test_what_is_owed_neither_replaces_nor_is_replaced() -> None:
    lane, log = Lane(), list[str]()
    claims = [Claim(run_s=0.1, stream="dock", arrived_s=float(index), is_owed=index != 1) for index in range(3)]
    with ExitStack() as stack, running(lane, 0.1) as release:
        for index, claim in enumerate(claims):
            stack.enter_context(waiting(lane, soon(PATIENT_S + index), claim, log, str(index)))
        assert lane.ahead == 4
        release.set()
    assert log == ["0", "1", "2"]


def test_a_turn_stays_clear_of_a_promise_that_it_would_run_into() -> None:
    lane = Lane()
    with lane.promise(soon(5.0), soon(10.0)):
        assert takes(lane, soon(100.0), Claim(run_s=4.0))
        with pytest.raises(Refused), lane.turn(soon(12.0), Claim(run_s=8.0)):
            pytest.fail("it got a turn")
    assert takes(lane, soon(100.0), Claim(run_s=8.0))
    assert_free(lane)
