"""What may be spent, whatever the policy, the past and the requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_routing import Past, learn, many, pasts, policies, requests, waits_s
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import Signals
from upwell.shared.routing.estimators.budget_ledger import period_bounds
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import Limit


@many
@given(policies, pasts, st.lists(requests(), min_size=1, max_size=12), waits_s)
def test_what_is_acquired_never_exceeds_a_budget_nor_the_share_of_hedges(
    policy: Policy, past: Past, asked: list[Signals], wait_s: float
) -> None:
    router = Router(policy)
    state, now_s = learn(router, past)
    taken: dict[tuple[Limit, float], float] = {}
    sent = hedged = 0.0
    for signals in asked:
        now_s += wait_s
        decision = router.decide(state, signals, now_s)
        state, granted = router.acquire(state, decision, now_s)
        assert granted, "nobody was in between"
        if not decision.up_rows:
            assert decision.draws == ()
            continue
        hedge = decision.verdict.settings.hedge
        sent += hedge.at_most if hedge else 0.0
        state, doubled = router.acquire_hedge(state, decision, now_s)
        hedged += doubled
        for draw in decision.draws * (2 if doubled else 1):
            start_s, _ = period_bounds(draw.limit.period, draw.wall_time_s, router.zone, draw.limit.billing_day)
            taken[draw.limit, start_s] = taken.get((draw.limit, start_s), 0.0) + draw.amount
    assert hedged <= sent + 1e-6
    assert all(amount <= limit.amount * (1 + 1e-9) for (limit, _), amount in taken.items())
