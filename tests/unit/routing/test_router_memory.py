"""What the router remembers of answers, pauses, hedges and shares."""

from __future__ import annotations

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, learnt, router, signals
from upwell.shared.routing.decide.offload import facts
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudCallFailed, CloudHeld, CloudMoved, RouterState
from upwell.shared.routing.estimators.hedging import HEDGE_BURST
from upwell.shared.routing.reasons import Reason


def test_a_shorter_pause_does_not_cut_a_longer_one_and_another_endpoint_ends_it() -> None:
    by = router()
    state = learnt(by, [CloudHeld(MODEL, 10.0), CloudHeld(MODEL, 1.0)])
    assert state.backoff_until == {MODEL: NOW_S + 10.0}
    assert facts(state, signals(), NOW_S).breaker_open
    moved = learnt(by, [CloudMoved()], state=state)
    assert moved.backoff_until == {}
    assert not facts(moved, signals(), NOW_S).breaker_open


def test_the_size_of_an_answer_is_learnt_by_row_and_slowly() -> None:
    state = learnt(router(), [CloudAnswered(MODEL, 4, 1000, 0.1, 0.05, received_bytes=400)])
    assert state.replies == {MODEL: 100.0}
    state = learnt(router(), [CloudAnswered(MODEL, 1, 1000, 0.1, 0.05, received_bytes=200)], state=state)
    assert state.replies[MODEL] == pytest.approx(120.0)


def test_saved_hedges_have_a_limit() -> None:
    by = router("defaults: {hedge: {after: 20ms, at_most: 100%}}\nrules: [{name: up, match: {}, route: cloud}]")
    state = RouterState()
    for _ in range(30):
        state, granted = by.acquire(state, by.decide(state, signals(), NOW_S), NOW_S)
        assert granted
    assert state.hedges[MODEL].level == HEDGE_BURST


def test_a_share_of_all_rows_is_no_limit() -> None:
    by = router()
    assert by.allow(RouterState(), {MODEL: 1.0}).allowances == {}
    assert by.allow(RouterState(), {MODEL: 0.99}).allowances.keys() == {MODEL}


def test_a_failure_that_is_no_timeout_counts_in_full_however_unlikely_an_answer_was() -> None:
    state = learnt(router(), [CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, chance=0.3)] * 3)
    assert any(breaker.is_open for breaker in state.breakers.values())
