"""What router tests are made of: policies in one line, signals with defaults, and states with a past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    EdgeRan,
    Outcome,
    RouterState,
    Signals,
)
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Reason

MODEL = "digits"
NOW_S = 1000.0
NO_TAGS: Mapping[str, str] = {}


@cache
def policy(text: str = "version: 1") -> Policy:
    """A policy file's content as a `Policy`."""
    return parse_yaml(text, Policy)


def router(text: str = "version: 1") -> Router:
    """A router by the policy in `text`."""
    return Router(policy(text))


def request_facts(
    *, model: str = MODEL, tags: Mapping[str, str] = NO_TAGS, size_bytes: int = 1000, wall_time_s: float = 0.0
) -> RequestFacts:
    """What rules look at."""
    return RequestFacts(model, tags, size_bytes, wall_time_s)


def signals(
    sizes_bytes: Sequence[int] = (1000,),
    *,
    tags: Mapping[str, str] = NO_TAGS,
    model: str = MODEL,
    at_s: float = NOW_S,
    **others: Any,
) -> Signals:
    """A request that arrives at `at_s`."""
    about = RequestFacts(model, tags, max(sizes_bytes), 0.0)
    return Signals(about, tuple(sizes_bytes), at_s, **others)


def learnt(
    by: Router, outcomes: Sequence[Outcome], at_s: float = NOW_S, state: RouterState | None = None
) -> RouterState:
    """The state after these outcomes, all seen at `at_s`."""
    state = state or RouterState()
    for outcome in outcomes:
        state = by.observe(state, outcome, at_s)
    return state


def known(
    by: Router, *, edge_s: float | None = None, cloud_s: float | None = None, model: str = MODEL, at_s: float = NOW_S
) -> RouterState:
    """A state that predicts `edge_s` for one row on the device and `cloud_s` for the cloud, half of it the link's."""
    past: list[Outcome] = []
    if edge_s is not None:
        past += [EdgeRan(model, 1, edge_s)] * 5
    if cloud_s is not None:
        past += [CloudAnswered(model, 1, 1000, cloud_s, cloud_s / 2)] * 5
    return learnt(by, past, at_s)


def failing(by: Router, times: int = 3, reason: Reason = Reason.CLOUD_UNAVAILABLE, at_s: float = NOW_S) -> RouterState:
    """A state in which the cloud failed that many times in a row."""
    return learnt(by, [CloudCallFailed(MODEL, reason)] * times, at_s)
