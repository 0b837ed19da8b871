"""Traces for tests, decided by the real router."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from upwell.edge.models.edge_model import ServedModel
from upwell.edge.observe.request_trace import RequestTrace, trace_of
from upwell.edge.request.answer import Answer, Timings
from upwell.edge.request.request import RequestRecord, RowParts
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import RouterState, Signals
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Plan, Reason, Route

ROUTER = Router(Policy())
STATE = RouterState()


def signals(tags: Mapping[str, str] | None = None, sizes: tuple[int, ...] = (100,), **facts: Any) -> Signals:
    request_facts = RequestFacts("digits", tags or {}, max(sizes), 1_790_000_000.0)
    return Signals(request_facts, sizes, 1000.0, **facts)


def answer(id: str, reason: Reason = Reason.EASY, **facts: Any) -> Answer:
    """Of the device."""
    times = Timings(0.012, 0.01, 0.02, 0.001, 0.005)
    return Answer({}, Route.EDGE, reason, reason is not Reason.EASY, Plan.CASCADE, times, id, (Route.EDGE,), **facts)


def record(id: str, asked: Signals, **facts: Any) -> RequestRecord:
    """The record of a request that the device has answered, unless `facts` say otherwise."""
    whole: dict[str, Any] = {
        "first": ROUTER.decide(STATE, asked, 1000.0), "second": None, "hardness": {0: 0.8}, "attempts": [],
        "edge_s": 0.01, **facts,
    }  # fmt: skip
    model, parts = ServedModel("digits", None, "digits"), RowParts(len(asked.row_sizes_bytes))
    return RequestRecord(model, id, asked, {}, {}, parts=parts, **whole)


def request_trace(id: str, tags: Mapping[str, str] | None = None, **facts: Any) -> RequestTrace:
    """The trace of a request that was answered, unless `facts` say otherwise."""
    ended, state, ended_s = facts.pop("answer", answer(id)), facts.pop("state", STATE), facts.pop("ended_s", 1000.012)
    own: dict[str, Any] = {"uplink_s": 0.02, **{name: facts.pop(name) for name in ("misses", "error") if name in facts}}
    done = record(id, facts.pop("signals", None) or signals(tags), **facts)
    trace = trace_of(done, ended or RuntimeError(), state, ended_s, "sha256:of-the-policy")
    return trace._replace(**own)


NOT_FINITE = {0: math.nan, 1: math.inf, 2: -math.inf, 3: 0.25}
