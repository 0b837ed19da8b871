"""The promise on the flow itself, in virtual time: faults, plans and patience in every combination.

Whatever the cloud does, the answer leaves by its deadline, from the side that it should come from, with the reason.
Over real sockets stays one case for each distinct fault (`tests/faults/test_promise.py`).
"""

from __future__ import annotations

import itertools
import math

import pytest

from tests.unit.routing.asking import policy
from tests.unit.routing.simulation.scenes import line
from upwell.shared.errors import Refused
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.flow.request_flow import failure
from upwell.shared.routing.reasons import CLOUD_FAILURES, DEGRADED, Reason, Route
from upwell.shared.routing.simulation.link_capacity import constant
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.simulated_uplink import CloudBehaviour, CloudScript
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome
from upwell.shared.routing.simulation.strategies import Scene, routed

PLANS = {
    "cascade": "hard: {measure: margin, below: 0.5}",
    "direct": "large: {above: 1KiB}",
    "direct, the first answer": "large: {above: 1KiB}, objective: latency",
}
PATIENCE = {
    "plain": "",
    "retry": "on_cloud_failure: retry",
    "hedge": "hedge: {after: 20ms, at_most: 100%}",
    "both": "on_cloud_failure: retry, hedge: {after: 20ms, at_most: 100%}",
    "error": "on_cloud_failure: error",
    "an error for one failure": "on_cloud_failure: {unavailable: error}",
}
"""Only the last is in none of the grids."""
ERRORS = ("error", "an error for one failure")
FAILURES = [reason for reason in sorted(CLOUD_FAILURES) if reason is not Reason.CLOUD_DEADLINE]
FAULTS: dict[str, CloudBehaviour] = {
    "silent": CloudBehaviour(math.inf),
    "slow": CloudBehaviour(1.0),
    **{f"{reason} at once": CloudBehaviour(0.0, reason) for reason in FAILURES},
    **{f"{reason} after a while": CloudBehaviour(0.05, reason) for reason in FAILURES},
}


def ask(
    script: CloudScript, plan: str, patience: str, *, edge_s: float = 0.01, count: int = 1
) -> list[SimulatedOutcome]:
    """Requests a second apart over a fast link, each due 200 ms after it came."""
    lines = [line(float(n), edge_s=edge_s) for n in range(count)]
    settings = ", ".join(part for part in ("deadline: 200ms", PLANS[plan], PATIENCE[patience]) if part)
    scene = Scene(prepare(lines), constant(80e6), 0.01, script)
    return routed(policy(f"defaults: {{{settings}}}"), scene)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("patience", [name for name in PATIENCE if name != ERRORS[1]])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_device_answers_in_time_and_says_why(fault: str, plan: str, patience: str) -> None:
    behaviour = FAULTS[fault]
    (one,) = ask(lambda *_: behaviour, plan, patience)
    if patience == "error":
        assert one.route is None
        assert one.reason is (behaviour.failure or Reason.CLOUD_DEADLINE)
        return
    assert one.in_time
    assert one.route is Route.EDGE
    assert one.edge_runs == 1
    if "first answer" in plan and one.reason is Reason.EDGE_FASTER:
        return  # the device's answer was there before the failure was
    assert one.reason is (behaviour.failure or Reason.CLOUD_DEADLINE)


@pytest.mark.parametrize("plan", ["cascade", "direct"])
@pytest.mark.parametrize("fault", [name for name in FAULTS if "invalid" not in name and name not in ("silent", "slow")])
def test_a_second_message_saves_what_the_first_one_missed(fault: str, plan: str) -> None:
    (one,) = ask(lambda _, n: FAULTS[fault] if n == 0 else CloudBehaviour(0.005), plan, "retry")
    assert (one.route, one.in_time) == (Route.CLOUD, True)
    assert one.left_bytes == 20_000


@pytest.mark.parametrize("plan", ["cascade", "direct"])
@pytest.mark.parametrize("fault", ["silent", "slow"])
def test_a_hedge_saves_what_stalls(fault: str, plan: str) -> None:
    (one,) = ask(lambda _, n: FAULTS[fault] if n == 0 else CloudBehaviour(0.005), plan, "hedge")
    assert (one.route, one.in_time) == (Route.CLOUD, True)
    assert one.latency_s < 0.1


def test_a_cloud_that_failed_while_the_device_ran_is_not_asked_again() -> None:
    """The device, which took 100 ms before, begins after 90 ms and takes 60; the cloud fails meanwhile."""
    lines = [line(0.0, size_bytes=100, edge_s=0.1), line(1.0, edge_s=0.06)]
    scene = Scene(prepare(lines), constant(80e6), 0.01, lambda *_: CloudBehaviour(0.1, Reason.CLOUD_UNAVAILABLE))
    settings = "deadline: 200ms, large: {above: 1KiB}, hard: off, objective: latency, on_cloud_failure: retry"
    _, one = routed(policy(f"defaults: {{{settings}}}"), scene)
    assert (one.route, one.reason, one.left_bytes) == (Route.EDGE, Reason.CLOUD_UNAVAILABLE, 10_000)


def test_a_deadline_too_short_for_the_cloud_says_so() -> None:
    asked = prepare([line(0.0, edge_s=0.0005, deadline_s=0.0019)])
    rules = policy("rules: [{name: up, match: {}, route: cloud}]")
    (one,) = routed(rules, Scene(asked, constant(80e6), 0.01, lambda *_: CloudBehaviour(0.005)))
    assert (one.reason, one.route, one.in_time, one.left_bytes) == (Reason.CLOUD_TOO_SLOW, Route.EDGE, True, 0)
    assert one.reason in DEGRADED


def test_what_cannot_help_is_not_asked_again() -> None:
    (one,) = ask(lambda *_: CloudBehaviour(0.0, Reason.CLOUD_INVALID_ARGUMENT), "cascade", "retry")
    assert (one.route, one.left_bytes) == (Route.EDGE, 10_000)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("patience", [name for name in PATIENCE if name not in ERRORS])
def test_after_an_outage_the_cloud_is_used_again(plan: str, patience: str) -> None:
    def script(request: object, _: int) -> CloudBehaviour:
        t_s = getattr(request, "t_s", 0.0)
        return CloudBehaviour(0.0, Reason.CLOUD_UNAVAILABLE) if 3 <= t_s < 12 else CloudBehaviour(0.005)

    served = ask(script, plan, patience, count=24, edge_s=0.05)
    assert all(one.in_time for one in served)
    down = {one.reason for one in served[3:12]}
    assert down <= {Reason.CLOUD_UNAVAILABLE, Reason.BREAKER_OPEN, Reason.EDGE_FASTER, Reason.HARD, Reason.LARGE}
    if "first answer" not in plan:
        assert Reason.BREAKER_OPEN in down
        assert {one.route for one in served[:3] + served[16:]} == {Route.CLOUD}


@pytest.mark.parametrize(("plan", "edge_s"), [*itertools.product(["cascade", "direct"], [0.001, 0.02, 0.1, 0.15])])
def test_a_slow_device_is_started_in_time_beside_the_silent_cloud(plan: str, edge_s: float) -> None:
    served = ask(lambda *_: CloudBehaviour(math.inf), plan, "plain", edge_s=edge_s, count=3)
    assert all((one.route, one.in_time) == (Route.EDGE, True) for one in served[1:])  # by then its time is known


def test_where_only_another_failure_is_an_error_the_device_runs_beside_the_silent_cloud() -> None:
    (one,) = ask(lambda *_: CloudBehaviour(math.inf), "direct", "an error for one failure")
    assert (one.route, one.reason, one.in_time) == (Route.EDGE, Reason.CLOUD_DEADLINE, True)


def test_the_place_on_the_device_that_a_request_held_is_free_once_the_cloud_has_answered() -> None:
    """Held from 80 ms on, where the edge run would have to begin; the second one needs the device then."""
    lines = [line(0.0, edge_s=0.1), line(0.05, size_bytes=100, edge_s=0.1)]
    scene = Scene(prepare(lines), constant(80e6), 0.01, lambda *_: CloudBehaviour(0.005))
    first, second = routed(policy("defaults: {deadline: 200ms, large: {above: 1KiB}, hard: off}"), scene)
    assert (first.route, first.edge_runs) == (Route.CLOUD, 0)
    assert second.route is Route.EDGE
    assert second.latency_s == pytest.approx(0.1)


def busy_for_longer_than_predicted(
    script: CloudScript, patience: str = "on_cloud_failure: edge"
) -> list[SimulatedOutcome]:
    """A large request, and a small one that comes 150 ms later. The device has another run until 160 ms instead of 40,
    so that the run that would stand in for the cloud from 80 ms on waits."""
    small = {"size_bytes": 100, "edge_s": 0.05}
    lines = [line(0.0, **small), line(1.0, **{**small, "edge_s": 0.17}), line(1.01, edge_s=0.05), line(1.16, **small)]
    settings = f"deadline: 200ms, large: {{above: 1KiB}}, hard: off, {patience}"
    return routed(policy(f"defaults: {{{settings}}}"), Scene(prepare(lines), constant(80e6), 0.01, script))[2:]


def test_an_answer_that_comes_while_the_stand_in_waits_for_the_device_is_given_at_once() -> None:
    large, small = busy_for_longer_than_predicted(lambda *_: CloudBehaviour(0.13))
    assert (large.route, large.edge_runs) == (Route.CLOUD, 0)
    assert large.latency_s == pytest.approx(0.141)
    assert small.latency_s == pytest.approx(0.06)  # it runs next, as nothing stands in any more


def test_a_call_that_fails_while_the_stand_in_waits_for_the_device_is_made_again() -> None:
    def script(_: object, number: int) -> CloudBehaviour:
        return CloudBehaviour(0.1, Reason.CLOUD_UNAVAILABLE) if number == 0 else CloudBehaviour(0.02)

    large, _ = busy_for_longer_than_predicted(script, "on_cloud_failure: retry")
    assert (large.route, large.edge_runs) == (Route.CLOUD, 0)
    assert large.latency_s == pytest.approx(0.111 + 0.031)


def test_a_stand_in_waits_on_where_the_cloud_has_failed() -> None:
    large, _ = busy_for_longer_than_predicted(lambda *_: CloudBehaviour(0.1, Reason.CLOUD_UNAVAILABLE))
    assert (large.route, large.reason, large.edge_runs) == (Route.EDGE, Reason.CLOUD_UNAVAILABLE, 1)
    assert large.latency_s == pytest.approx(0.16 + 0.05)


def test_a_request_for_which_the_busy_device_has_no_time_left_is_answered_by_the_cloud() -> None:
    """It was admitted behind a run of 50 ms, which takes a second; 50 ms before its deadline it can no longer run."""
    small = {"size_bytes": 100, "edge_s": 0.05}
    lines = [line(0.0, **small), line(1.0, **{**small, "edge_s": 1.0}), line(1.01, **small)]
    scene = Scene(prepare(lines), constant(80e6), 0.01, lambda *_: CloudBehaviour(0.005))
    *_, one = routed(policy("defaults: {deadline: 200ms, hard: off}"), scene)
    assert (one.route, one.reason, one.in_time, one.edge_runs) == (Route.CLOUD, Reason.EDGE_BUSY, True, 0)


def test_when_a_full_cloud_wants_to_be_asked_again_is_passed_on() -> None:
    error = failure(CloudFailure(Reason.CLOUD_EXHAUSTED, "full", retry_after_s=1.5))
    assert isinstance(error, Refused)
    assert error.retry_after_s == 1.5
