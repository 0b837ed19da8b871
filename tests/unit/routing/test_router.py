"""Decisions: each reason where it belongs, the instants of a request, and what a caller is told who is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, failing, known, learnt, router, signals
from upwell.shared.routing.decide.router_state import CloudCallFailed, Decision, EdgeRan, RouterState
from upwell.shared.routing.estimators.deadline_reserve import reserve_s
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason

EMPTY = RouterState()
NAN = math.nan

LARGE = "defaults: {large: {above: 1kB}}"
LATENCY = "defaults: {objective: latency, large: {above: 1kB}}"
UP = "rules: [{name: up, match: {}, route: cloud}]"
STAY = "rules: [{name: stay, match: {}, route: edge}]"
DENY = "rules: [{name: private, match: {}, egress: deny}]"
DENY_AND_UP = "rules: [{name: up, match: {}, route: cloud}, {name: private, match: {}, egress: deny}]"


def before(text: str, sizes: Sequence[int] = (1000,), state: RouterState = EMPTY, **signal: Any) -> Decision:
    """What is decided before anything ran."""
    return router(text).decide(state, signals(sizes, **signal), NOW_S)


def after(text: str, hardness: Sequence[float], state: RouterState = EMPTY, **signal: Any) -> Decision:
    """What is decided when the device has scored as many rows of 1000 bytes."""
    rows = tuple(range(len(hardness)))
    asked = signals([1000] * len(rows), scored_rows=rows, hardness=tuple(hardness), **signal)
    return router(text).decide(state, asked, NOW_S)


# text, signals, plan, reason, up, kept, escalate
PLANS = [
    ("version: 1", {}, Plan.CASCADE, Reason.EASY, 0, 0, True),
    ("version: 1", {"has_cloud": False}, Plan.EDGE, Reason.NO_CLOUD, 0, 0, False),
    ("version: 1", {"has_scores": False}, Plan.EDGE, Reason.NO_SCORES, 0, 0, False),
    ("version: 1", {"has_edge": False}, Plan.CLOUD, Reason.NO_EDGE, 1, 0, False),
    ("defaults: {hard: off}", {}, Plan.EDGE, Reason.ALWAYS_EDGE, 0, 0, False),
    ("defaults: {hard: off, large: {above: 2kB}}", {}, Plan.EDGE, Reason.EASY, 0, 0, False),
    ("defaults: {large: {above: 1000B}}", {}, Plan.CASCADE, Reason.EASY, 0, 0, True),
    ("defaults: {large: {above: 999B}}", {}, Plan.CLOUD, Reason.LARGE, 1, 0, False),
    ("defaults: {large: {above: 0}}", {}, Plan.CLOUD, Reason.LARGE, 1, 0, False),
    ("defaults: {large: {above: 999B}}", {"has_cloud": False}, Plan.EDGE, Reason.NO_CLOUD, 0, 1, False),
    (UP, {}, Plan.CLOUD, Reason.RULE, 1, 0, False),
    (UP, {"has_cloud": False}, Plan.EDGE, Reason.NO_CLOUD, 0, 1, False),
    (STAY, {}, Plan.EDGE, Reason.RULE, 0, 0, False),
    (STAY + "\n" + LARGE.replace("1kB", "1B"), {}, Plan.EDGE, Reason.RULE, 0, 0, False),
    (DENY, {}, Plan.EDGE, Reason.EGRESS_DENIED, 0, 0, False),
    (DENY, {"has_cloud": False}, Plan.EDGE, Reason.EGRESS_DENIED, 0, 0, False),
    (DENY_AND_UP, {}, Plan.EDGE, Reason.EGRESS_DENIED, 0, 1, False),
    (DENY + "\n" + LARGE.replace("1kB", "1B"), {}, Plan.EDGE, Reason.EGRESS_DENIED, 0, 1, False),
    ("rules: [{name: r, match: {}, set: {deadline: 9s}}]", {}, Plan.CASCADE, Reason.EASY, 0, 0, True),
]


@pytest.mark.parametrize(("text", "about", "plan", "reason", "up", "kept", "escalate"), PLANS)
def test_a_plan_and_its_reason_before_the_edge_run(
    text: str, about: dict[str, Any], plan: Plan, reason: Reason, up: int, kept: int, escalate: bool
) -> None:
    decision = before(text, **about)
    assert (decision.plan, decision.reason) == (plan, reason)
    assert (len(decision.up_rows), len(decision.kept_rows)) == (up, kept)
    assert (decision.escalate, decision.refusal, decision.degraded) == (escalate, "", False)


def test_only_the_large_rows_go_up_and_the_others_may_follow() -> None:
    decision = before(LARGE, (10, 5000, 1000, 1001))
    assert (decision.plan, decision.reason, decision.up_rows) == (Plan.CASCADE, Reason.LARGE, (1, 3))
    assert decision.escalate
    quiet = before(LARGE + "\nmodels: {digits: {hard: off}}", (10, 5000))
    assert (quiet.plan, quiet.reason, quiet.up_rows, quiet.escalate) == (Plan.CASCADE, Reason.LARGE, (1,), False)


def test_large_rows_that_may_not_go_are_named_and_the_others_may_still_be_hard() -> None:
    decision = before(LARGE, (10, 5000), failing(router(LARGE)))
    assert (decision.plan, decision.reason, decision.obstacle) == (
        Plan.CASCADE, Reason.BREAKER_OPEN, Reason.BREAKER_OPEN,
    )  # fmt: skip
    assert (decision.up_rows, decision.kept_rows, decision.escalate, decision.degraded) == ((), (1,), True, True)


HARD = [
    ("version: 1", (0.9, 0.74, 0.75, 0.0, NAN), Reason.HARD, (1, 3, 4)),
    ("version: 1", (0.9, 0.76), Reason.EASY, ()),
    ("defaults: {hard: {measure: entropy, above: 0.5}}", (0.6, 0.5, 0.4, NAN), Reason.HARD, (0, 3)),
    ("defaults: {hard: {below: 0}}", (0.0, 0.0), Reason.EASY, ()),
    ("defaults: {hard: {below: 0}}", (0.0, NAN), Reason.HARD, (1,)),
    ("defaults: {hard: {below: 1}}", (1.0, 0.999), Reason.HARD, (1,)),
]


@pytest.mark.parametrize(("text", "hardness", "reason", "up"), HARD)
def test_exactly_the_hard_rows_go_up_after_the_edge_run(
    text: str, hardness: Sequence[float], reason: Reason, up: tuple[int, ...]
) -> None:
    decision = after(text, hardness)
    assert (decision.plan, decision.reason, decision.up_rows) == (Plan.CASCADE, reason, up)
    assert (decision.kept_rows, decision.degraded, decision.escalate) == ((), False, False)


def test_rows_are_named_as_in_the_request_where_only_some_were_scored() -> None:
    asked = signals((10, 5000, 10, 10), scored_rows=(0, 2, 3), hardness=(0.1, 0.9, 0.1))
    assert router(LARGE).decide(EMPTY, asked, NOW_S).up_rows == (0, 3)


# text, learnt edge and cloud times, has the cloud failed, reason, degraded
OBSTACLES = [
    (UP, 0.01, 2.0, False, Reason.CLOUD_TOO_SLOW, True),
    (UP, 0.01, None, True, Reason.BREAKER_OPEN, True),
    (UP, 0.01, 0.02, True, Reason.BREAKER_OPEN, True),
    (LATENCY, 0.01, 0.5, False, Reason.CLOUD_NOT_BETTER, False),
    (LATENCY, 0.01, 2.0, False, Reason.CLOUD_TOO_SLOW, True),
    (DENY_AND_UP, 0.01, None, True, Reason.EGRESS_DENIED, False),
]


@pytest.mark.parametrize(("text", "edge_s", "cloud_s", "failed", "reason", "degraded"), OBSTACLES)
def test_an_obstacle_keeps_the_rows_and_is_the_reason(
    text: str, edge_s: float, cloud_s: float | None, failed: bool, reason: Reason, degraded: bool
) -> None:
    by = router(text)
    state = known(by, edge_s=edge_s, cloud_s=cloud_s)
    if failed:
        state = learnt(by, [CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE)] * 3, state=state)
    decision = by.decide(state, signals((2000, 2000)), NOW_S)
    assert (decision.plan, decision.reason, decision.obstacle) == (Plan.EDGE, reason, reason)
    assert (decision.up_rows, decision.kept_rows, decision.refusal) == ((), (0, 1), "")
    assert decision.degraded is degraded is (reason in DEGRADED)


@pytest.mark.parametrize(
    ("text", "reason"), [("version: 1", Reason.BREAKER_OPEN), (LATENCY, Reason.CLOUD_NOT_BETTER)], ids=str
)
def test_an_obstacle_after_the_edge_run_keeps_the_hard_rows(text: str, reason: Reason) -> None:
    state = failing(router(text))
    decision = after(text, (0.9, 0.1), state)
    assert (decision.reason, decision.up_rows, decision.kept_rows) == (reason, (), (1,))
    assert after(text, (0.9, 0.9), state).reason is Reason.EASY


def test_the_breaker_of_one_model_leaves_the_others_alone() -> None:
    by = router(UP)
    state = learnt(by, [CloudCallFailed("broken", Reason.CLOUD_GARBAGE)] * 3)
    assert by.decide(state, signals(model="broken"), NOW_S).reason is Reason.BREAKER_OPEN
    assert by.decide(state, signals(), NOW_S).up_rows == (0,)


def test_a_dead_link_holds_every_model_back() -> None:
    by = router(UP)
    assert by.decide(failing(by), signals(model="another"), NOW_S).reason is Reason.BREAKER_OPEN


def test_latency_sends_a_large_case_only_if_that_is_faster() -> None:
    by = router(LATENCY)
    assert by.decide(known(by, edge_s=0.2, cloud_s=0.1), signals((2000,)), NOW_S).up_rows == (0,)
    assert by.decide(known(by, edge_s=0.1, cloud_s=0.1), signals((2000,)), NOW_S).up_rows == ()


def test_latency_sends_what_a_rule_makes_a_candidate_only_if_that_is_faster() -> None:
    by = router(LATENCY + "\n" + UP)
    decision = by.decide(known(by, edge_s=0.01, cloud_s=0.5), signals(), NOW_S)
    assert (decision.up_rows, decision.reason) == ((), Reason.CLOUD_NOT_BETTER)
    assert by.decide(known(by, edge_s=0.5, cloud_s=0.01), signals(), NOW_S).reason is Reason.RULE


DEADLINES = [(math.inf, 0.5), (0.2, 0.2), (0.5, 0.5), (0.7, 0.5), (1e-6, 1e-6)]


@pytest.mark.parametrize(("caller_s", "expected_s"), DEADLINES)
def test_the_deadline_is_the_earlier_of_the_callers_and_the_policys(caller_s: float, expected_s: float) -> None:
    text = "defaults: {deadline: 500ms}"
    for decision in (
        before(text, caller_deadline_s=NOW_S + caller_s),
        after(text, (0.1,), caller_deadline_s=NOW_S + caller_s),
        before(text, caller_deadline_s=NOW_S + caller_s, has_edge=False),
    ):
        assert decision.deadline_s == pytest.approx(NOW_S + expected_s)


@pytest.mark.parametrize(
    ("available_s", "expected_s"), [(0.0, 0.002), (0.01, 0.002), (0.1, 0.01), (0.2, 0.02), (0.3, 0.025), (1e9, 0.025)]
)
def test_the_reserve_is_a_tenth_within_bounds(available_s: float, expected_s: float) -> None:
    assert reserve_s(available_s) == pytest.approx(expected_s)


def test_the_reserve_is_taken_from_the_time_that_the_request_had() -> None:
    for decision in (before("defaults: {deadline: 100ms}"), before(UP, caller_deadline_s=NOW_S + 0.1)):
        assert decision.give_up_s == pytest.approx(NOW_S + 0.09)


def test_time_that_has_passed_since_the_arrival_does_not_move_the_deadline() -> None:
    decision = router("defaults: {deadline: 500ms}").decide(EMPTY, signals(), NOW_S + 0.3)
    assert decision.deadline_s == pytest.approx(NOW_S + 0.5)
    assert decision.give_up_s == pytest.approx(NOW_S + 0.475)


def test_the_fallback_starts_early_enough_to_be_done_when_the_cloud_is_given_up() -> None:
    by = router("defaults: {deadline: 1s}\n" + UP)
    state = learnt(by, [EdgeRan(MODEL, 1, duration_s) for duration_s in [0.01] * 20 + [0.1]])
    alone = by.decide(state, signals(), NOW_S)
    assert alone.give_up_s == pytest.approx(NOW_S + 0.975)
    assert alone.fallback_start_s == pytest.approx(NOW_S + 0.975 - 0.1)
    crowd = by.decide(state, signals(edge_ahead=2), NOW_S)
    assert crowd.fallback_start_s == pytest.approx(NOW_S + 0.975 - 0.1 - 2 * 0.01)


def test_a_device_that_was_never_measured_starts_its_fallback_when_the_cloud_is_given_up() -> None:
    decision = before(UP)
    assert decision.fallback_start_s == decision.give_up_s < decision.deadline_s


BUSY = [(0, False), (1, False), (7, False), (8, True), (100, True)]


@pytest.mark.parametrize(("ahead", "lifted"), BUSY)
def test_a_device_with_too_much_before_it_lets_the_cloud_answer(ahead: int, lifted: bool) -> None:
    by = router("defaults: {deadline: 90ms}")
    state = known(by, edge_s=0.01, cloud_s=0.02)
    decision = by.decide(state, signals(edge_ahead=ahead, caller_deadline_s=NOW_S + 0.0801), NOW_S)
    assert decision.refusal == ""
    if lifted:
        assert (decision.plan, decision.reason, decision.up_rows) == (Plan.CLOUD, Reason.EDGE_BUSY, (0,))
    else:
        assert (decision.plan, decision.reason) == (Plan.CASCADE, Reason.EASY)


BLOCKED = [
    (DENY, {}, 0.02),
    (STAY, {}, 0.02),
    ("version: 1", {"has_cloud": False}, 0.02),
    ("version: 1", {}, 0.2),
]


@pytest.mark.parametrize(("text", "about", "cloud_s"), BLOCKED)
def test_a_busy_device_without_a_way_up_refuses_and_says_why(text: str, about: dict[str, Any], cloud_s: float) -> None:
    by = router(f"defaults: {{deadline: 100ms}}\n{text}")
    state = known(by, edge_s=0.01, cloud_s=cloud_s)
    decision = by.decide(state, signals(edge_ahead=50, **about), NOW_S)
    assert decision.up_rows == ()
    assert decision.refusal == (
        "no allowed route is predicted to answer in time: "
        "100.0 ms are left and the device needs 510.0 ms behind 50 other requests"
    )


def test_a_number_of_rows_that_was_never_measured_is_tried_where_it_would_be_refused_for_ever() -> None:
    """Beside a stream of single rows, whose time is mostly that of a call, a batch was guessed too slow and refused."""
    by = router("defaults: {deadline: 100ms}")
    batch, state = signals([10] * 256, has_cloud=False), known(by, edge_s=0.001)
    assert by.decide(state, batch, NOW_S).refusal == "", "between 1 and 256 ms"
    assert by.decide(by.observe(state, EdgeRan(MODEL, 256, 0.256), NOW_S), batch, NOW_S).refusal, "measured"
    assert by.decide(state, signals([10] * 2048, has_cloud=False), NOW_S).refusal, "the device might be busy for 2 s"
    assert by.decide(known(by, edge_s=0.2), signals([10] * 2, has_cloud=False), NOW_S).refusal, "late even for one"
    few = signals([10] * 8, has_cloud=False)
    assert by.decide(by.observe(RouterState(), EdgeRan(MODEL, 64, 0.4), NOW_S), few, NOW_S).refusal == ""
    up = by.decide(known(by, edge_s=0.04, cloud_s=0.01), signals([10] * 4), NOW_S)
    assert (up.plan, up.reason) == (Plan.CLOUD, Reason.EDGE_BUSY), "not tried where the cloud is in time"


def test_a_deadline_in_the_past_is_refused_and_nothing_goes_up() -> None:
    for late_s in (0.0, 1e-9, 5.0, math.inf):
        decision = before("version: 1", caller_deadline_s=NOW_S - late_s)
        assert ": 0.0 ms are left and" in decision.refusal
        assert decision.up_rows == ()


@pytest.mark.parametrize("about", [{}, {"has_edge": False}])
@pytest.mark.parametrize("left_s", [-1.0, 0.0, 0.0005, 0.0019])
def test_what_cannot_be_back_in_time_stays_also_where_the_link_is_unknown(about: dict[str, Any], left_s: float) -> None:
    decision = before(UP, caller_deadline_s=NOW_S + left_s, **about)
    assert decision.give_up_s < NOW_S
    assert decision.up_rows == ()


def test_hard_rows_stay_where_the_edge_run_took_all_the_time_there_was() -> None:
    asked = signals(scored_rows=(0,), hardness=(0.0,), at_s=NOW_S - 2.0)
    decision = router().decide(EMPTY, asked, NOW_S)
    assert (decision.up_rows, decision.reason) == ((), Reason.CLOUD_TOO_SLOW)


def test_what_is_predicted_to_be_back_at_the_last_moment_goes_up() -> None:
    by = router(UP.replace("rules", "defaults: {deadline: 1s}\nrules"))
    state = known(by, edge_s=0.01, cloud_s=0.5)
    for left_s, up in ((0.55, (0,)), (0.5, ())):
        assert by.decide(state, signals(has_edge=False, caller_deadline_s=NOW_S + left_s), NOW_S).up_rows == up


def test_a_device_as_slow_as_the_time_that_is_left_is_still_in_time() -> None:
    by = router("defaults: {deadline: 1s}")
    state = known(by, edge_s=0.5)
    for left_s, refused in ((0.5, False), (0.499, True)):
        asked = signals(has_cloud=False, caller_deadline_s=NOW_S + left_s)
        assert bool(by.decide(state, asked, NOW_S).refusal) is refused


# seconds since the last run, with a fastest run of 10 ms or of 500 ms and a usual one of 500 ms
SILENCES = [(0.0, True, True), (2.0, True, True), (2.1, False, True), (10.0, False, True), (10.1, False, False)]


@pytest.mark.parametrize(("silence_s", "refused", "refused_if_never_faster"), SILENCES)
def test_the_longer_nothing_ran_the_less_an_old_slow_run_counts(
    silence_s: float, refused: bool, refused_if_never_faster: bool
) -> None:
    by, at_s = router("defaults: {deadline: 100ms}"), NOW_S + silence_s
    once_fast = learnt(by, [EdgeRan(MODEL, 1, 0.01), *[EdgeRan(MODEL, 1, 0.5)] * 8])
    never_fast = known(by, edge_s=0.5)
    asked = signals(has_cloud=False, at_s=at_s)
    assert bool(by.decide(once_fast, asked, at_s).refusal) is refused
    assert bool(by.decide(never_fast, asked, at_s).refusal) is refused_if_never_faster


def test_the_unknown_is_tried() -> None:
    by = router(UP)
    assert by.decide(EMPTY, signals(), NOW_S).up_rows == (0,)
    stale = known(by, edge_s=0.01, cloud_s=30.0)
    assert by.decide(stale, signals(), NOW_S).up_rows == ()
    assert by.decide(stale, signals(at_s=NOW_S + 2.1), NOW_S + 2.1).up_rows == ()
    assert by.decide(stale, signals(at_s=NOW_S + 6.0), NOW_S + 6.0).up_rows == (0,)


REFUSALS = [
    (DENY, {}, Reason.EGRESS_DENIED, "rule 'private' denies egress and the model has no edge side"),
    (DENY_AND_UP, {}, Reason.EGRESS_DENIED, "rule 'private' denies egress and the model has no edge side"),
    (STAY, {}, Reason.RULE, "rule 'stay' keeps the request on the device and the model has no edge side"),
    ("version: 1", {"has_cloud": False}, Reason.NO_CLOUD, "the model has neither an edge side nor a cloud"),
]


@pytest.mark.parametrize(("text", "about", "obstacle", "refusal"), REFUSALS)
def test_a_model_without_an_edge_side_says_what_stands_in_its_way(
    text: str, about: dict[str, Any], obstacle: Reason, refusal: str
) -> None:
    decision = before(text, has_edge=False, **about)
    assert (decision.up_rows, decision.obstacle) == ((), obstacle)
    if obstacle is Reason.NO_CLOUD:
        assert "nan" not in decision.refusal
    else:
        assert decision.refusal == refusal


def test_a_model_without_an_edge_side_is_refused_while_the_cloud_fails_or_is_too_slow() -> None:
    by = router()
    left_alone = by.decide(failing(by), signals(has_edge=False), NOW_S)
    assert (left_alone.obstacle, left_alone.up_rows) == (Reason.BREAKER_OPEN, ())
    assert left_alone.refusal == "the cloud keeps failing and is not asked for a moment, and the model has no edge side"
    slow = by.decide(known(by, cloud_s=2.0), signals(has_edge=False), NOW_S)
    assert (slow.obstacle, slow.up_rows) == (Reason.CLOUD_TOO_SLOW, ())
    assert "the cloud needs 2000.0 ms and the model has no edge side" in slow.refusal


def test_a_device_that_failed_is_no_reason_to_keep_a_request_from_a_slower_cloud() -> None:
    by = router(LATENCY)
    state = known(by, edge_s=0.001, cloud_s=0.1)
    decision = by.decide(state, signals((2000,), has_edge=False), NOW_S)
    assert (decision.up_rows, decision.refusal) == ((0,), "")


def test_the_size_of_what_goes_up_is_what_is_predicted() -> None:
    by = router(LARGE)
    state = known(by, edge_s=0.01, cloud_s=0.1)
    few = by.decide(state, signals((2000, 10)), NOW_S)
    assert few.predicted_cloud_s == pytest.approx(0.1)
    assert few.predicted_edge_s == pytest.approx(0.02), "two rows, and one was measured"


def test_one_row_stays_where_the_others_leave_and_the_device_has_time_for_it_alone() -> None:
    by = router("defaults: {deadline: 100ms, large: {above: 1kB}}")
    state = learnt(by, [EdgeRan(MODEL, 1, 0.001)] * 5)
    decision = by.decide(state, signals([2000] * 999 + [10]), NOW_S)
    assert (decision.plan, decision.reason, decision.refusal) == (Plan.CASCADE, Reason.LARGE, "")
    assert decision.up_rows == tuple(range(999))


def test_rows_that_all_leave_do_so_for_their_own_reason_however_busy_the_device_is() -> None:
    by = router("defaults: {deadline: 100ms, large: {above: 1kB}}")
    decision = by.decide(known(by, edge_s=5.0, cloud_s=0.02), signals([2000, 2000]), NOW_S)
    assert (decision.plan, decision.reason, decision.up_rows) == (Plan.CLOUD, Reason.LARGE, (0, 1))


def test_rows_that_stay_because_the_way_up_is_blocked_count_against_the_device() -> None:
    by = router("defaults: {deadline: 100ms, large: {above: 1kB}}")
    state = learnt(by, [CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE)] * 3, state=known(by, edge_s=0.06))
    assert by.decide(state, signals([2000]), NOW_S).refusal == ""
    state = learnt(by, [EdgeRan(MODEL, 2, 0.12)] * 2, state=state)
    assert by.decide(state, signals([2000, 10]), NOW_S).refusal


def test_a_model_that_never_went_up_is_tried_over_a_link_that_is_known() -> None:
    by = router(UP)
    state = known(by, cloud_s=0.1, model="another")
    decision = by.decide(state, signals(), NOW_S)
    assert decision.up_rows == (0,)
    assert decision.predicted_cloud_s == pytest.approx(0.05), "the link's part alone"


def test_a_request_of_ten_thousand_rows_is_decided_in_linear_time() -> None:
    sizes = [2000 if row % 3 else 10 for row in range(10_000)]
    decision = before(LARGE, sizes)
    assert decision.up_rows == tuple(row for row in range(10_000) if row % 3)


def test_a_model_that_no_policy_and_no_past_names_is_decided_by_the_defaults() -> None:
    by = router("models: {other: {hard: off}}")
    assert by.decide(EMPTY, signals(model="never heard of"), NOW_S).reason is Reason.EASY
