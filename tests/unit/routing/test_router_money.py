"""What going up costs: budgets, energy, prices; and no flapping about a tie."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, known, learnt, router, signals
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    Audited,
    CloudAnswered,
    Decision,
    EdgeRan,
    Outcome,
    RouterState,
    Scored,
    Signals,
)
from upwell.shared.routing.reasons import Reason

UP = "rules: [{name: up, match: {}, route: cloud}]"


def by_defaults(text: str) -> Router:
    return router(f"defaults: {{{text}}}\n{UP}")


def after(by: Router, state: RouterState, hardness: float, **about: Any) -> Decision:
    return by.decide(state, signals(scored_rows=(0,), hardness=(hardness,), **about), NOW_S)


def test_a_budget_lets_so_many_up_and_then_keeps_them_without_blame() -> None:
    by, state = by_defaults("budget: {cloud_requests: 3/min}"), RouterState()
    for _ in range(3):
        decision = by.decide(state, signals(), NOW_S)
        assert decision.needs_acquire
        state, granted = by.acquire(state, decision, NOW_S)
        assert granted
    last = by.decide(state, signals(), NOW_S)
    assert (last.reason, last.obstacle, last.kept_rows) == (Reason.BUDGET_SPENT, Reason.BUDGET_SPENT, (0,))
    assert not last.degraded
    assert by.acquire(state, decision, NOW_S) == (state, False), "two decided at once and one was left"
    assert "budget" in by.decide(state, signals(has_edge=False), NOW_S).refusal


@pytest.mark.parametrize(("budget", "each"), [("uplink: 10kB/h", 1000), ("money: 0.01/day", 0.001)])
def test_bytes_and_money_are_drawn_as_predicted_and_settled_as_sent(budget: str, each: float) -> None:
    by = by_defaults(f"budget: {{{budget}}}, prices: {{uplink_gb: 0, cloud_request: 0.001}}")
    decision = by.decide(RouterState(), signals(), NOW_S)
    assert [draw.amount for draw in decision.draws] == [pytest.approx(each)]
    state, _ = by.acquire(RouterState(), decision, NOW_S)
    assert by.settle(state, decision, None).budgets.left(decision.draws[0].limit, 0.0, by.zone) == pytest.approx(
        10 * each
    )
    settled = by.settle(state, decision, 1500)
    left = settled.budgets.left(decision.draws[0].limit, 0.0, by.zone)
    assert left == pytest.approx(8500 if "uplink" in budget else 9 * each)
    given_back = by.settle(settled, decision, None, 1500)
    assert given_back.budgets.left(decision.draws[0].limit, 0.0, by.zone) == pytest.approx(10 * each)


def test_settling_nothing_changes_nothing() -> None:
    by, state = by_defaults("deadline: 1s"), RouterState()
    assert by.settle(state, by.decide(state, signals(), NOW_S), 5) is state


ENERGY = [
    ("20mJ", "2uJ", 9_000, True),
    ("20mJ", "2uJ", 10_000, False),
    ("20mJ", "2uJ", 11_000, False),
    ("0J", "0J", 10, False),
]


@pytest.mark.parametrize(("inference", "byte", "size_bytes", "goes"), ENERGY)
def test_energy_sends_what_costs_less_to_send_than_to_run(
    inference: str, byte: str, size_bytes: int, goes: bool
) -> None:
    by = by_defaults(f"objective: energy, energy: {{inference: {inference}, uplink_byte: {byte}}}")
    decision = by.decide(RouterState(), signals((size_bytes,)), NOW_S)
    assert bool(decision.up_rows) is goes
    assert goes or (decision.reason is Reason.CLOUD_NOT_BETTER and not decision.degraded)
    both = by.decide(RouterState(), signals((size_bytes, size_bytes)), NOW_S)
    assert bool(both.up_rows) is goes, "twice the rows, twice the joules on either side"


@pytest.mark.parametrize("objective", ["latency", "energy", "cost"])
def test_once_the_device_has_answered_nothing_is_sooner_or_cheaper(objective: str) -> None:
    by = router(f"defaults: {{objective: {objective}, energy: {{inference: 5J, uplink_byte: 1uJ}}}}")
    assert after(by, RouterState(), 0.0).reason is Reason.CLOUD_NOT_BETTER


def test_cost_keeps_everything_that_the_device_can_answer() -> None:
    by = by_defaults("deadline: 100ms, objective: cost, prices: {cloud_request: 0.001}")
    assert by.decide(RouterState(), signals(), NOW_S).reason is Reason.CLOUD_NOT_BETTER
    busy = known(by, edge_s=0.05, cloud_s=0.02)
    assert by.decide(busy, signals(edge_ahead=5), NOW_S).reason is Reason.EDGE_BUSY
    assert by.decide(busy, signals(has_edge=False), NOW_S).up_rows == (0,)


def acquired(by: Router, state: RouterState, asked: Signals) -> tuple[RouterState, bool]:
    decision = by.decide(state, asked, NOW_S)
    state, _ = by.acquire(state, decision, NOW_S)
    return state, bool(decision.up_rows)


def test_a_side_is_left_only_for_a_margin() -> None:
    by = by_defaults("deadline: 1s, objective: latency")

    def side(state: RouterState, edge_s: float, cloud_s: float) -> tuple[RouterState, bool]:
        past: list[Outcome] = [EdgeRan(MODEL, 1, edge_s) for _ in range(8)]
        past += [CloudAnswered(MODEL, 1, 1000, cloud_s, cloud_s / 2)] * 16
        return acquired(by, learnt(by, past, state=state), signals())

    state, up = side(RouterState(), 0.1, 0.08)
    assert up
    for cloud_s, expected in ((0.105, True), (0.12, False), (0.095, False), (0.08, True)):
        state, up = side(state, 0.1, cloud_s)
        assert up is expected, cloud_s


def test_a_link_that_was_too_slow_must_be_clearly_in_time_again_where_nothing_stands_in() -> None:
    by = by_defaults("deadline: 1s")

    def goes(state: RouterState, cloud_s: float) -> tuple[RouterState, bool]:
        past: list[Outcome] = [CloudAnswered(MODEL, 1, 1000, cloud_s, cloud_s / 2)] * 64
        return acquired(by, learnt(by, past, state=state), signals(has_edge=False))

    state, up = goes(RouterState(), 0.96)
    assert up
    for cloud_s, expected in ((1.0, False), (0.96, False), (0.9, True), (0.96, True)):
        state, up = goes(state, cloud_s)
        assert up is expected, cloud_s


def test_a_decision_that_changes_nothing_needs_nothing() -> None:
    by = by_defaults("deadline: 1s")
    assert not by.decide(RouterState(), signals(), NOW_S).needs_acquire


SHARE = "defaults: {hard: {measure: margin, below: 0.5, cloud_share: 20%}}"


def test_the_controllers_threshold_decides_once_it_has_learnt() -> None:
    by = router(SHARE)
    hard = by.settings(MODEL).hard
    assert hard is not None
    state = RouterState()
    assert after(by, state, 0.4).up_rows == (0,)
    rng = random.Random(0)
    scored = [Scored(MODEL, hard.scope, 1, 0, (rng.random() / 10,)) for _ in range(2000)]
    state = learnt(by, scored, state=state)
    assert state.shares[hard.scope].threshold == pytest.approx(0.02, abs=0.02)
    assert after(by, state, 0.08).up_rows == ()
    assert after(by, state, 0.001).up_rows == (0,)
    assert after(by, state, 0.08).threshold == state.shares[hard.scope].threshold, "which `explain` tells"


def test_scores_under_a_policy_that_was_replaced_are_let_go() -> None:
    by, state = router(SHARE), RouterState()
    assert by.observe(state, Scored(MODEL, "of another policy", 1, 0, (0.1,)), NOW_S) is state


def test_without_a_calibration_the_plain_threshold_decides_and_says_so() -> None:
    by = router("defaults: {hard: {measure: margin, below: 0.5, max_risk: 2%, confidence: 95%}}")
    assert by.decide(RouterState(), signals(), NOW_S).reason is Reason.UNCALIBRATED
    for hardness, up in ((0.4, (0,)), (0.6, ())):
        decision = after(by, RouterState(), hardness)
        assert (decision.reason, decision.up_rows) == (Reason.UNCALIBRATED, up)


def test_audits_are_tallied_by_scope() -> None:
    by = router("defaults: {hard: {measure: margin, below: 0.5, max_risk: 2%, confidence: 95%}}")
    hard = by.settings(MODEL).hard
    assert hard is not None
    state = learnt(by, [Scored(MODEL, hard.scope, 1, 0, (0.9,)), *[Audited(MODEL, hard.scope, True)] * 40])
    tally = state.audits[hard.scope]
    assert (tally.n, tally.disagreed, tally.alarm) == (40, 40, True)


def test_a_rule_that_cannot_be_evaluated_keeps_everything_here_and_says_so() -> None:
    pytest.importorskip("cel_expr_python")
    by = router(UP.replace("[{", "[{name: odd, if: 'request.size_bytes / 0 > 1', egress: deny}, {"))
    decision = by.decide(RouterState(), signals(), NOW_S)
    assert (decision.reason, decision.up_rows, decision.degraded) == (Reason.RULE_ERROR, (), False)
    assert "'odd' could not be evaluated" in by.decide(RouterState(), signals(has_edge=False), NOW_S).refusal


def test_expressions_see_what_the_router_knows() -> None:
    pytest.importorskip("cel_expr_python")
    by = router("rules: [{name: near, if: 'link.rtt_s < 0.04', route: cloud}]")
    for cloud_s, reason in ((0.06, Reason.RULE), (0.2, Reason.EASY)):
        assert by.decide(known(by, cloud_s=cloud_s), signals(), NOW_S).reason is reason
