"""A cloud that says when to come back is not asked before, and nothing else is held up for it."""

from __future__ import annotations

import math

from tests.unit.routing.asking import MODEL, NOW_S, known, learnt, router, signals
from upwell.shared.routing.decide.offload import facts
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudHeld,
    CloudMoved,
    Outcome,
    RouterState,
)
from upwell.shared.routing.decide.state_updates import LONGEST_HOLD_S
from upwell.shared.routing.reasons import Plan, Reason

UP = "defaults: {deadline: 1s}\nrules: [{name: up, match: {}, route: cloud}]"
REFUSED = CloudCallFailed(MODEL, Reason.CLOUD_EXHAUSTED)


def held(after_s: float = 2.0, *more: Outcome) -> RouterState:
    by = router(UP)
    return learnt(by, [REFUSED, CloudHeld(MODEL, after_s), *more], state=known(by, edge_s=0.01, cloud_s=0.1))


def obstacle(state: RouterState, at_s: float, model: str = MODEL) -> Reason | None:
    return router(UP).decide(state, signals(at_s=at_s, model=model), at_s).obstacle


def test_until_then_the_device_answers_at_once_and_says_why() -> None:
    decision = router(UP).decide(held(), signals(), NOW_S)
    assert (decision.plan, decision.obstacle, decision.degraded) == (Plan.EDGE, Reason.CLOUD_EXHAUSTED, True)
    assert not decision.up_rows
    assert not decision.probes
    assert obstacle(held(), NOW_S + 1.99) is Reason.CLOUD_EXHAUSTED
    assert obstacle(held(), NOW_S + 2.0) is None


def test_a_caller_with_all_the_time_in_the_world_is_held_as_well() -> None:
    by = router("defaults: {deadline: 1h}\nrules: [{name: up, match: {}, route: cloud}]")
    assert by.decide(held(), signals((10,)), NOW_S).obstacle is Reason.CLOUD_EXHAUSTED


def test_no_cloud_silences_a_device_for_long() -> None:
    for after_s in (LONGEST_HOLD_S, 86400.0, math.inf):
        assert obstacle(held(after_s), NOW_S + LONGEST_HOLD_S - 0.01) is Reason.CLOUD_EXHAUSTED
        assert obstacle(held(after_s), NOW_S + LONGEST_HOLD_S) is None


def test_an_answer_to_what_was_sent_before_does_not_end_it() -> None:
    state = held(2.0, CloudAnswered(MODEL, 1, 1000, 0.1, 0.05))
    assert obstacle(state, NOW_S + 1.0) is Reason.CLOUD_EXHAUSTED


def test_of_two_that_are_refused_the_later_instant_counts() -> None:
    assert obstacle(held(2.0, CloudHeld(MODEL, 0.5)), NOW_S + 1.0) is Reason.CLOUD_EXHAUSTED
    assert obstacle(held(0.5, CloudHeld(MODEL, 2.0)), NOW_S + 1.0) is Reason.CLOUD_EXHAUSTED


def test_it_is_about_one_model_at_one_endpoint() -> None:
    assert obstacle(held(), NOW_S, model="other") is None
    assert obstacle(held(2.0, CloudMoved()), NOW_S) is None


def test_those_that_are_refused_beside_the_first_do_not_open_the_breaker() -> None:
    state = held(0.05, *[REFUSED] * 7)
    assert not state.breakers[MODEL].is_open
    assert obstacle(state, NOW_S + 0.05) is None


def test_refused_each_time_after_the_wait_the_cloud_fails_like_any_other() -> None:
    by, state = router(UP), RouterState()
    for n in range(3):
        state = learnt(by, [REFUSED, CloudHeld(MODEL, 0.05)], NOW_S + n, state)
    assert state.breakers[MODEL].is_open
    assert obstacle(state, NOW_S + 2.1) is Reason.BREAKER_OPEN


def test_a_probe_that_is_refused_so_gives_its_slot_back() -> None:
    by = router(UP)
    state = learnt(by, [REFUSED] * 3)
    decision = by.decide(state, signals(at_s=NOW_S + 1), NOW_S + 1)
    state, granted = by.acquire(state, decision, NOW_S + 1)
    assert granted
    assert decision.probes == (MODEL,)
    ended = CloudCallFailed(MODEL, Reason.CLOUD_EXHAUSTED, decision.probes)
    state = learnt(by, [CloudHeld(MODEL, 0.01), ended], NOW_S + 1, state)
    assert state.breakers[MODEL].has_slot(NOW_S + 1)
    assert by.decide(state, signals(at_s=NOW_S + 10), NOW_S + 10).probes == (MODEL,)


def test_rules_may_look_at_it_as_at_an_open_breaker() -> None:
    state = learnt(router(), [CloudHeld(MODEL, 2.0)])
    seen = [facts(state, signals(model=model), at_s).breaker_open for model, at_s in [
        (MODEL, NOW_S), ("other", NOW_S), (MODEL, NOW_S + 2.0),
    ]]  # fmt: skip
    assert seen == [True, False, False]


def test_without_the_device_s_answer_it_is_refused_and_told_so() -> None:
    decision = router(UP).decide(held(), signals(has_edge=False), NOW_S)
    assert decision.obstacle is Reason.CLOUD_EXHAUSTED
    assert "asked for a pause" in decision.refusal


def test_a_model_without_a_device_side_is_told_when_the_cloud_may_be_asked() -> None:
    asked = signals(at_s=NOW_S + 0.5, has_edge=False)
    decision = router(UP).decide(held(), asked, NOW_S + 0.5)
    assert (decision.refusal != "", decision.retry_after_s) == (True, 1.5)
    assert router(UP).decide(held(), asked, NOW_S + 2.0).retry_after_s is None
