"""Requests that compete for the link, in virtual time: the flow, the queue and the router together."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.routing.simulation.scenes import line, rules, scene
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome
from upwell.shared.routing.simulation.strategies import routed

RTT_S = 0.05
POLICY = "defaults: {deadline: 1s, hard: {measure: margin, below: 0.9}}"
LEARNT_S = 20.0
"""By then the link is known, 1 MB a second, and what the candidates of late are like."""


def competing(*lines: LogLine) -> Sequence[SimulatedOutcome]:
    """What becomes of these, which come after others by which the router has learnt."""
    before = [
        line(index / 2, size_bytes=20_000 if index % 2 else 60_000, hardness={"margin": 0.1 * (index % 9)})
        for index in range(40)
    ]
    return routed(rules(POLICY), scene([*before, *lines], rtt_s=RTT_S))[len(before) :]


def test_of_two_that_wait_the_one_with_more_gain_per_byte_goes_first_though_it_came_last() -> None:
    first, large, small = competing(
        line(LEARNT_S, size_bytes=400_000),
        line(LEARNT_S + 0.02, size_bytes=300_000, hardness={"margin": 0.2}),
        line(LEARNT_S + 0.04, size_bytes=30_000, hardness={"margin": 0.05}),
    )
    assert [one.route for one in (first, large, small)] == [Route.CLOUD] * 3
    assert first.answered_s < small.answered_s < large.answered_s
    assert small.answered_s < LEARNT_S + 0.4 + 0.1 + 0.03 + RTT_S


def test_what_can_no_longer_make_it_is_answered_by_the_device_and_nothing_of_it_leaves() -> None:
    first, late, *small = competing(
        line(LEARNT_S, size_bytes=500_000),
        line(LEARNT_S + 0.02, size_bytes=300_000, hardness={"margin": 0.2}),
        *(line(LEARNT_S + 0.04 + index / 100, size_bytes=45_000, hardness={"margin": 0.05}) for index in range(6)),
    )
    assert [one.route for one in (first, *small)] == [Route.CLOUD] * 7
    assert (late.route, late.reason, late.left_bytes) == (Route.EDGE, Reason.CLOUD_TOO_SLOW, 0)
    assert late.in_time
    assert late.latency_s < 0.8  # as soon as that is certain, not at its deadline


def test_what_is_worth_less_than_its_time_on_a_busy_link_stays_though_it_would_be_in_time() -> None:
    first, large, small = competing(
        line(LEARNT_S, size_bytes=300_000),
        line(LEARNT_S + 0.02, size_bytes=200_000, hardness={"margin": 0.75}),
        line(LEARNT_S + 0.04, size_bytes=5_000, hardness={"margin": 0.75}),
    )
    assert [one.route for one in (first, large, small)] == [Route.CLOUD, Route.EDGE, Route.CLOUD]
    assert (large.reason, large.left_bytes) == (Reason.CLOUD_TOO_SLOW, 0)


def test_the_link_is_as_full_as_without_the_queue() -> None:
    served = competing(*(line(LEARNT_S + index / 100, size_bytes=90_000) for index in range(10)))
    up = [one for one in served if one.route is Route.CLOUD]
    assert len(up) == 10
    assert max(one.answered_s for one in up) < LEARNT_S + 0.9 + 2 * RTT_S
