"""A model that is split: by which cut a request goes up, and when it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, router, signals
from upwell.shared.routing.decide.router_state import (
    LINK,
    CloudAnswered,
    CloudCallFailed,
    CloudSent,
    Decision,
    EdgeRan,
    RouterState,
    SplitRoute,
)
from upwell.shared.routing.reasons import Plan, Reason

EARLY = SplitRoute(f"{MODEL}/c1", 20_000, head_s=0.002, tail_s=0.010)
LATE = SplitRoute(f"{MODEL}/c9", 500, head_s=0.030, tail_s=0.001)
SPLIT_ROUTES = (EARLY, LATE)
WHOLE_S = 0.015
"""What the whole model takes in the cloud."""
SPLIT = "defaults: {deadline: 1s}\nrules: [{name: s, match: {}, route: split}]"
FASTEST = "defaults: {deadline: 1s, objective: latency, hard: off}"


def ask(text: str, state: RouterState, sizes: Sequence[int] = (100_000,), **about: Any) -> Decision:
    return router(text).decide(state, signals(sizes, **{"split_routes": SPLIT_ROUTES, **about}), NOW_S)


def linked(bytes_per_s: float, *, edge_s: float = 0.050, rtt_s: float = 0.010) -> RouterState:
    """A router that knows the device's time, and a link of that speed."""
    state = RouterState()
    it = router("version: 1")
    for index in range(8):
        state = it.observe(state, EdgeRan(MODEL, 1, edge_s), NOW_S - 0.1)
        size = 10_000 * (index % 3 + 1)
        state = it.observe(
            state, CloudAnswered(MODEL, 1, size, rtt_s + size / bytes_per_s + WHOLE_S, WHOLE_S), NOW_S - 0.1
        )
    return state


def failing(state: RouterState, key: str) -> RouterState:
    """With a breaker that is open: that of the link, or of a model or way."""
    reason = Reason.CLOUD_UNAVAILABLE if key == LINK else Reason.CLOUD_ERROR
    for _ in range(3):
        state = router("version: 1").observe(state, CloudCallFailed(key or MODEL, reason), NOW_S)
    return state


def split_route_of(decision: Decision) -> str:
    return "" if decision.split_route is None else decision.split_route.key


def test_the_cut_that_is_predicted_the_soonest_is_taken() -> None:
    fast, slow = ask(SPLIT, linked(10e6)), ask(SPLIT, linked(100e3))
    assert (split_route_of(fast), fast.plan, fast.reason, fast.up_rows) == (EARLY.key, Plan.SPLIT, Reason.RULE, (0,))
    assert (split_route_of(slow), slow.plan) == (LATE.key, Plan.SPLIT)
    assert fast.predicted_cloud_s == pytest.approx(0.010 + 20_000 / 10e6 + 0.012, rel=0.05)
    assert slow.predicted_cloud_s == pytest.approx(0.010 + 500 / 100e3 + 0.031, rel=0.05)


def test_under_latency_the_best_of_device_cuts_and_cloud_answers() -> None:
    assert ask(FASTEST, linked(10e6)).reason is Reason.PLACED
    assert split_route_of(ask(FASTEST, linked(10e6))) == EARLY.key
    stays = ask(FASTEST, linked(2e3))
    assert (stays.plan, stays.reason, stays.up_rows, stays.degraded) == (
        Plan.EDGE, Reason.CLOUD_NOT_BETTER, (), False)  # fmt: skip
    whole = ask(FASTEST, linked(1e9), (10,), split_routes=(SplitRoute("m/a", 20_000, 0.010, 0.010),))
    assert (split_route_of(whole), whole.plan, whole.reason) == ("", Plan.CLOUD, Reason.PLACED)
    only_ways = ask(FASTEST, linked(1e9), (10,), has_cloud=False)
    assert (split_route_of(only_ways), only_ways.plan) == (EARLY.key, Plan.SPLIT)


def test_a_rule_that_says_split_never_sends_the_whole() -> None:
    assert split_route_of(ask(SPLIT, linked(1e9), (10,))) == EARLY.key


def test_a_rule_that_says_split_without_a_head_stays_on_the_device_and_says_so() -> None:
    decision = ask(SPLIT, linked(1e9), split_routes=())
    assert (decision.plan, decision.reason, decision.up_rows) == (Plan.EDGE, Reason.NO_SPLIT, ())
    without_edge = ask(SPLIT, linked(1e9), split_routes=(), has_edge=False)
    assert (without_edge.plan, without_edge.up_rows) == (Plan.CLOUD, (0,))


def test_a_model_without_an_edge_side_may_go_up_by_a_cut() -> None:
    decision = ask("defaults: {deadline: 1s}", linked(100e3), has_edge=False, has_cloud=False)
    assert (decision.plan, decision.reason, decision.up_rows, split_route_of(decision)) == (
        Plan.SPLIT, Reason.NO_EDGE, (0,), LATE.key)  # fmt: skip


def test_under_accuracy_what_is_easy_stays_and_what_is_large_goes_by_the_best_way() -> None:
    text = "defaults: {deadline: 1s, hard: off, large: {above: 50kB}}"
    assert ask(text, linked(10e6), (1000,)).up_rows == ()
    decision = ask(text, linked(10e6))
    assert (decision.reason, split_route_of(decision), decision.plan) == (Reason.LARGE, EARLY.key, Plan.SPLIT)


def test_measured_times_take_the_place_of_the_plans() -> None:
    it, state = router("version: 1"), linked(10e6)
    for _ in range(8):
        state = it.observe(state, EdgeRan(EARLY.key, 1, 0.100), NOW_S - 0.1)
    assert split_route_of(ask(SPLIT, state)) == LATE.key
    for _ in range(8):
        state = it.observe(state, CloudAnswered(LATE.key, 1, 500, 0.410, 0.400), NOW_S - 0.1)
    assert split_route_of(ask(SPLIT, state)) == EARLY.key


def test_the_way_taken_last_is_left_only_for_one_that_is_clearly_sooner() -> None:
    near = (SplitRoute("m/a", 1000, 0.020, 0.020), SplitRoute("m/b", 1001, 0.019, 0.020))
    state = linked(10e6)
    first = ask(SPLIT, state, split_routes=near)
    assert split_route_of(first) == "m/b"
    state = router("version: 1").observe(state, CloudSent("m/a", "1", 1, 1000, MODEL), NOW_S)
    assert state.last_split_route == {MODEL: "m/a"}
    assert split_route_of(ask(SPLIT, state, split_routes=near)) == "m/a"
    better = (near[0], SplitRoute("m/b", 1001, 0.010, 0.020))
    assert split_route_of(ask(SPLIT, state, split_routes=better)) == "m/b"


def test_runs_that_the_device_owes_delay_the_head() -> None:
    idle = ask(SPLIT, linked(10e6)).predicted_cloud_s
    assert ask(SPLIT, linked(10e6), edge_ahead=2).predicted_cloud_s == pytest.approx(idle + 0.100, rel=0.05)


def test_a_tail_that_fails_is_left_alone_and_the_others_are_not() -> None:
    failed = failing(linked(10e6), EARLY.key)
    assert split_route_of(ask(SPLIT, failed)) == LATE.key
    whole = ask(FASTEST, failing(failed, LATE.key), (100,))
    assert (split_route_of(whole), whole.plan) == ("", Plan.CLOUD)


def test_when_nothing_is_known_of_the_link_the_least_is_sent() -> None:
    assert split_route_of(ask(SPLIT, RouterState())) == LATE.key


def test_what_is_too_slow_for_the_deadline_stays_degraded() -> None:
    decision = ask(SPLIT.replace("1s", "60ms"), linked(10e3))
    assert (decision.up_rows, decision.obstacle, decision.degraded) == ((), Reason.CLOUD_TOO_SLOW, True)
    assert decision.split_route is None


def test_nothing_goes_up_by_a_cut_where_egress_is_denied() -> None:
    text = "rules: [{name: private, match: {}, egress: deny}, {name: s, match: {}, route: split}]"
    decision = ask(text, linked(1e9))
    assert (decision.up_rows, decision.reason) == ((), Reason.EGRESS_DENIED)


@pytest.mark.parametrize(("byte", "goes"), [("1uJ", True), ("1mJ", False)])
def test_energy_counts_the_heads_share(byte: str, goes: bool) -> None:
    text = f"defaults: {{deadline: 1s, objective: energy, hard: off, energy: {{uplink_byte: {byte}, inference: 1J}}}}"
    assert bool(ask(text, linked(10e6), has_cloud=False).up_rows) is goes


def test_a_head_that_costs_as_much_as_the_whole_saves_no_energy() -> None:
    text = "defaults: {deadline: 1s, objective: energy, hard: off, energy: {uplink_byte: 0J, inference: 1J}}"
    dear = (SplitRoute("m/a", 10, head_s=0.060, tail_s=0.0),)
    assert ask(text, linked(10e6), split_routes=dear, has_cloud=False).up_rows == ()
    assert not math.isnan(ask(text, linked(10e6), split_routes=dear, has_cloud=False).predicted_edge_s)


def test_open_breaker_of_the_link_closes_every_way() -> None:
    decision = ask(SPLIT, failing(linked(10e6), LINK))
    assert (decision.up_rows, decision.obstacle) == ((), Reason.BREAKER_OPEN)


def test_a_head_that_answers_early_is_split_where_a_rule_says_so() -> None:
    """It has no ways: what goes up goes to its tail."""
    decision = ask(SPLIT, linked(1e6), split_routes=(), exits=True)
    assert (decision.up_rows, decision.reason) == ((0,), Reason.RULE)
    assert ask(SPLIT, linked(1e6), split_routes=()).reason is Reason.NO_SPLIT
