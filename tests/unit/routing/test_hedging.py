"""Second requests: when, how many, and out of whose budget."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, learnt, signals
from tests.unit.routing.asking import router as by_policy
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudCallFailed, Outcome, RouterState
from upwell.shared.routing.estimators.hedging import HEDGE_BURST, NO_HEDGES, hedge_after_s, paid_hedge
from upwell.shared.routing.estimators.run_and_answer_times import AnswerTimes
from upwell.shared.routing.policy.settings import HedgeSettings
from upwell.shared.routing.reasons import Reason

HEDGED = "{deadline: 1s, hedge: {after: p95, at_most: 5%}}"
UP = f"defaults: {HEDGED}\nrules: [{{name: up, match: {{}}, route: cloud}}]"


def router() -> Router:
    return by_policy(UP)


def times(*seconds: float) -> AnswerTimes:
    built = AnswerTimes()
    for second in seconds:
        built = built.add(second)
    return built


AFTER = [
    (None, times(*[0.1] * 100), 1.0, math.inf),
    (HedgeSettings(0.05), times(*[0.1] * 100), 1.0, 0.1),
    (HedgeSettings(0.05), times(*[0.1] * 100), 0.1, math.inf),
    (HedgeSettings(0.05), times(*[0.1] * 5), 1.0, math.inf),
    (HedgeSettings(0.05), None, 1.0, math.inf),
    (HedgeSettings(0.0), times(*[0.1] * 100), 1.0, math.inf),
    (HedgeSettings(0.05, after_s=0.08), None, 1.0, 0.08),
    (HedgeSettings(0.05, after_s=0.08), None, 0.07, math.inf),
    (HedgeSettings(0.05, 0.5), times(*([0.1] * 60 + [0.5] * 40)), 1.0, 0.1),
]


@pytest.mark.parametrize(("settings", "known", "available_s", "expected_s"), AFTER)
def test_a_second_request_is_worth_it_after(
    settings: HedgeSettings | None, known: AnswerTimes | None, available_s: float, expected_s: float
) -> None:
    assert hedge_after_s(settings, known, available_s) == expected_s


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 1.0])
def test_hedges_are_never_more_than_their_share_of_the_requests(share: float) -> None:
    rng, tokens, requests, hedges = random.Random(0), NO_HEDGES, 0, 0
    for _ in range(3000):
        tokens, requests = tokens.give(share, HEDGE_BURST), requests + 1
        if rng.random() < 0.5 and (paid := paid_hedge(tokens)) is not None:
            tokens, hedges = paid, hedges + 1
        assert hedges <= share * requests + 1e-6
    assert hedges >= min(share, 0.4) * requests * 0.95


def test_a_quiet_time_saves_up_for_a_burst_and_no_more() -> None:
    tokens = NO_HEDGES
    for _ in range(10_000):
        tokens = tokens.give(0.05, HEDGE_BURST)
    assert tokens.level == HEDGE_BURST


def answered(total_s: float = 0.1, count: int = 100) -> list[Outcome]:
    return [CloudAnswered(MODEL, 1, 1000, total_s, 0.01)] * count


def test_a_decision_says_when_and_the_router_grants_as_many_as_were_earned() -> None:
    by = router()
    state = learnt(by, answered())
    granted = 0
    for index in range(200):
        decision = by.decide(state, signals(), NOW_S)
        assert decision.hedge_after_s == pytest.approx(0.1)
        assert decision.needs_acquire
        state, taken = by.acquire(state, decision, NOW_S)
        assert taken
        state, hedged = by.acquire_hedge(state, decision, NOW_S + 0.1)
        granted += hedged
        assert granted <= 0.05 * (index + 1) + 1e-6
    assert granted == 10


def test_nobody_hedges_when_nobody_waits_any_more_or_another_took_the_last() -> None:
    by = router()
    state = learnt(by, answered())
    decision = by.decide(state, signals(), NOW_S)
    for _ in range(20):
        state, _ = by.acquire(state, decision, NOW_S)
    assert by.acquire_hedge(state, decision, decision.give_up_s) == (state, False)
    state, granted = by.acquire_hedge(state, decision, NOW_S)
    assert granted
    assert by.acquire_hedge(state, decision, NOW_S) == (state, False)


def test_a_probe_is_not_hedged() -> None:
    by = router()
    state = learnt(by, [*answered(), *[CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE)] * 3])
    decision = by.decide(state, signals(at_s=NOW_S + 0.6), NOW_S + 0.6)
    assert decision.probes
    assert decision.hedge_after_s == math.inf


def test_a_hedged_answer_is_a_time_that_an_answer_took_and_no_sample_of_the_link() -> None:
    by = router()
    state = by.observe(RouterState(), CloudAnswered(MODEL, 1, 1000, 0.1, 0.01, hedged=True), NOW_S)
    assert state.answers[MODEL].samples_s == (0.1,)
    assert state.link.samples == ()


def test_a_hedge_draws_on_the_budgets_like_any_request() -> None:
    by = by_policy(UP.replace("hedge:", "budget: {cloud_requests: 3/min}, hedge:"))
    state = learnt(by, answered())
    decision = by.decide(state, signals(), NOW_S)
    for _ in range(2):
        state, granted = by.acquire(state, decision, NOW_S)
        assert granted
    state = learnt(by, [], state=state)
    rich = state.hedges[MODEL]
    state = replace(state, hedges={MODEL: rich.give()})
    state, granted = by.acquire_hedge(state, decision, NOW_S)
    assert granted
    assert by.acquire_hedge(state, decision, NOW_S) == (state, False)
    assert by.decide(state, signals(), NOW_S).reason is Reason.BUDGET_SPENT
