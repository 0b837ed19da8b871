"""The shorter way to a decision says what the full way says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.test_routing import Past, learn, pasts, requests, written_policies
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import EdgeRan, RouterState, Signals, SplitRoute
from upwell.shared.routing.policy.compiled_policy import RequestFacts, Verdict
from upwell.shared.routing.policy.policy import Policy


def full_way(policy: Policy) -> Router:
    """A router that knows no other."""
    router = Router(policy)
    router._edge_shortcuts = {}
    return router


@settings(deadline=None, max_examples=examples(150))
@given(written_policies(), pasts, requests(), st.floats(0, 12), st.booleans(), st.sampled_from([0.0, 0.001, 0.3]))
def test_both_ways_come_to_the_same_decision(
    written: dict[str, Any], past: Past, signals: Signals, wait_s: float, is_split: bool, ran_s: float
) -> None:
    policy = Policy.model_validate({**written, "rules": []})
    model, rows = signals.request_facts.model, len(signals.row_sizes_bytes)
    state, now_s = learn(Router(policy), [*past, (EdgeRan(model, rows, ran_s), 0.1)])
    split_routes = (SplitRoute("digits@c1", 100),) if is_split else ()
    signals = replace(signals, has_edge=True, split_routes=split_routes, exits=not is_split and rows % 2 == 0)
    for asked in (signals, replace(signals, arrived_s=now_s, caller_deadline_s=math.inf)):
        for at_s in (now_s, now_s + wait_s):
            found = Router(policy).decide(state, asked, at_s)
            event("goes up" if found.up_rows else "refused" if found.refusal else "stays")
            # NaN is not equal to itself.
            assert repr(found) == repr(full_way(policy).decide(state, asked, at_s))


USUAL = Signals(RequestFacts("digits", {}, 100, 0.0), (100,), 0.0)
RAN = EdgeRan("digits", 1, 0.01)


def told(policy: Policy, signals: Signals, state: RouterState, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the full way was gone."""
    router, asked = Router(policy), []
    judge = router.verdict

    def noted(*facts: Any) -> Verdict:
        asked.append(facts)
        return judge(*facts)

    monkeypatch.setattr(router, "verdict", noted)
    router.decide(state, signals, 0.1)
    return bool(asked)


def test_the_shorter_way_is_gone_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Router(Policy()).observe(RouterState(), RAN, 0.0)
    ruled = Policy.model_validate({"rules": [{"name": "up", "match": {"model": "other"}, "route": "cloud"}]})
    large = Policy.model_validate({"defaults": {"large": {"above": "10B"}}})
    assert not told(Policy(), USUAL, state, monkeypatch)
    assert told(Policy(), USUAL, RouterState(), monkeypatch)
    assert told(ruled, USUAL, state, monkeypatch)
    assert told(large, USUAL, state, monkeypatch)
