"""A share of the fleet's budget tightens what the policy sends up, takes the hardest, and never loosens anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.routing.asking import MODEL, NOW_S, router, signals
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import CloudSent, EdgeRan, RouterState, Scored
from upwell.shared.routing.estimators.fleet_allowance import BURST_ROWS
from upwell.shared.routing.reasons import Reason

PLAIN = "defaults: {deadline: 1s, hard: {measure: margin, below: 0.4}}"
LARGE = "defaults: {deadline: 1s, large: {above: 500B}, hard: off}"


def ask(by: Router, state: RouterState, margin: float) -> tuple[RouterState, bool, Reason]:
    """One scored request, as the agent tells of it; whether it went up."""
    hard = by.settings(MODEL).hard
    assert hard is not None
    state = by.observe(state, EdgeRan(MODEL, 1, 0.001), NOW_S)
    decision = by.decide(state, signals(scored_rows=(0,), hardness=(margin,)), NOW_S)
    state = by.observe(state, Scored(MODEL, hard.scope, 1, 0, (margin,)), NOW_S)
    if decision.up_rows:
        state = by.observe(state, CloudSent(MODEL, "c", 1, 1000), NOW_S)
    return state, bool(decision.up_rows), decision.reason


def run(by: Router, margins: list[float], share: float | None) -> list[bool]:
    state = RouterState() if share is None else by.allow(RouterState(), {MODEL: share})
    up = []
    for margin in margins:
        state, went, _ = ask(by, state, margin)
        up.append(went)
    return up


def test_of_a_policy_that_sends_two_fifths_a_tenth_goes_up_and_it_is_the_hardest() -> None:
    by, margins = router(PLAIN), np.random.default_rng(7).random(4000).tolist()
    assert sum(run(by, margins, None)) == pytest.approx(1600, abs=100)
    held = run(by, margins, 0.1)
    assert 0.08 * 4000 < sum(held) <= 0.1 * 4000 + BURST_ROWS
    went = [margin for margin, up in zip(margins[500:], held[500:], strict=True) if up]
    assert np.mean(went) < 0.08, "drawn at random of those below 0.4 it would be 0.2"


@settings(max_examples=examples(40))
@given(
    share=st.floats(0, 1),
    margins=st.lists(st.floats(0, 1), max_size=150),
    text=st.sampled_from([PLAIN, "defaults: {hard: {measure: margin, below: 0.5, cloud_share: 30%}}"]),
)
def test_nothing_goes_up_that_the_policy_would_keep_and_never_more_than_the_share(
    share: float, margins: list[float], text: str
) -> None:
    by = router(text)
    alone, held = run(by, margins, None), run(by, margins, share)
    assert not any(here and not there for there, here in zip(alone, held, strict=True))
    assert sum(held) <= share * len(margins) + BURST_ROWS * share + 1


def test_large_requests_are_held_to_it_too_and_say_why() -> None:
    by = router(LARGE)
    state, up = by.allow(RouterState(), {MODEL: 0.2}), 0
    for _ in range(2000):
        decision = by.decide(state, signals(), NOW_S)
        if decision.up_rows:
            up += 1
            state = by.observe(state, CloudSent(MODEL, "c", 1, 1000), NOW_S)
        else:
            assert (decision.reason, decision.degraded) == (Reason.FLEET_SHARE, False)
            state = by.observe(state, EdgeRan(MODEL, 1, 0.001), NOW_S)
    assert 0.15 * 2000 < up <= 0.2 * 2000 + BURST_ROWS


def test_a_row_that_only_the_cloud_can_answer_goes_up_all_the_same() -> None:
    by = router(LARGE)
    state = by.allow(RouterState(), {MODEL: 0.0})
    assert by.decide(state, signals(has_edge=False), NOW_S).up_rows == (0,)
    assert by.decide(state, signals(), NOW_S).reason is Reason.FLEET_SHARE


def test_another_share_forgets_nothing_and_none_is_the_policy_alone() -> None:
    by = router(PLAIN)
    state = by.allow(RouterState(), {MODEL: 0.0})
    state, went, reason = ask(by, state, 0.1)
    assert (went, reason) == (False, Reason.FLEET_SHARE)
    assert ask(by, state, 0.9)[2] is Reason.EASY
    more = by.allow(state, {MODEL: 0.5})
    assert more.allowances[MODEL].tokens == 0.0, "no fresh burst with each change"
    assert ask(by, by.allow(more, {}), 0.1)[1]
    assert by.allow(more, {MODEL: 1.0}).allowances == {}
    assert not by.charge(state, MODEL, 10, 0.0)[1], "cases kept for later wait, too"
