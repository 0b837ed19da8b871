"""What is kept back for the end of a request, before and after it was seen how long that takes."""

from __future__ import annotations

import math

import pytest

from tests.unit.routing.asking import NOW_S, router, signals
from tests.unit.routing.simulation.scenes import line, rules
from upwell.shared.routing.decide.router_state import GaveUp, RouterState
from upwell.shared.routing.estimators.deadline_reserve import Overruns, reserve_s
from upwell.shared.routing.reasons import Route
from upwell.shared.routing.simulation.link_capacity import constant
from upwell.shared.routing.simulation.logged_requests import LoggedRequest, prepare
from upwell.shared.routing.simulation.simulated_uplink import CloudBehaviour
from upwell.shared.routing.simulation.strategies import Scene, routed


def after(*overruns_s: float) -> Overruns:
    found = Overruns()
    for overrun_s in overruns_s:
        found = found.add(overrun_s)
    return found


def test_until_enough_was_seen_all_is_kept_back() -> None:
    assert after(*[0.0] * (Overruns.ENOUGH - 1)).reserve_s(0.3) == reserve_s(0.3) == 0.025


@pytest.mark.parametrize(
    ("slowest_s", "expected_s"), [(0.0, 0.002), (0.001, 0.002), (0.006, 0.012), (0.02, 0.025), (9.0, 0.025)]
)
def test_twice_the_slowest_is_kept_back_within_bounds(slowest_s: float, expected_s: float) -> None:
    seen = [0.0005] * Overruns.ENOUGH
    assert after(slowest_s, *seen).reserve_s(0.3) == pytest.approx(expected_s)


def test_what_was_slow_long_ago_is_forgotten() -> None:
    assert after(0.02, *[0.001] * Overruns.WINDOW).reserve_s(0.3) == pytest.approx(0.002)


def test_an_answer_in_the_last_moment_is_taken_once_giving_up_was_seen_to_be_quick() -> None:
    """Every other call is in vain; the last is answered 15 ms before its deadline, in time for less than the whole
    reserve."""

    def cloud(request: LoggedRequest, _: int) -> CloudBehaviour:
        if request.t_s == last_s:
            return CloudBehaviour(0.275)
        return CloudBehaviour(math.inf if request.t_s % 20 else 0.01)

    for count, route in ((2, Route.EDGE), (3 * Overruns.ENOUGH, Route.CLOUD)):
        last_s = 20.0 * count
        lines = [line(10.0 * number) for number in range(2 * count + 1)]
        served = routed(
            rules("defaults: {deadline: 300ms, hard: {measure: margin, below: 0.5}}"),
            Scene(prepare(lines), constant(1e9), 0.0, cloud),
        )
        assert all(one.in_time for one in served)
        assert served[-1].route is route


def test_only_a_request_that_the_device_has_answered_gives_less_than_all_of_the_reserve() -> None:
    by, state = router("defaults: {deadline: 300ms, hard: {measure: margin, below: 0.5}}"), RouterState()
    for _ in range(Overruns.ENOUGH):
        state = by.observe(state, GaveUp(0.001), NOW_S)
    before, scored = signals(), signals(scored_rows=(0,), hardness=(0.1,))
    reserves_s = [
        one.deadline_s - one.give_up_s for one in (by.decide(state, asked, NOW_S) for asked in (before, scored))
    ]
    assert reserves_s == pytest.approx([0.025, 0.002])
