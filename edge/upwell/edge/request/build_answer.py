"""The answer, put together of what the device and the cloud gave."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib.metadata import version as package_version

from upwell.edge.models.served import EdgeModel
from upwell.edge.request.answer import Answer, Timings
from upwell.edge.request.record import RequestRecord
from upwell.edge.uplink.calls import CloudReply
from upwell.shared.routing.flow.actions import CloudFailure
from upwell.shared.routing.flow.attempt import CloudAttempt
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason, Route

UPWELL_VERSION = package_version("upwell")


def build_answer(done: RequestRecord, plan: Plan, reason: Reason, obstacle: Reason | None, agent: str) -> Answer:
    """The answer of the agent of that name to a request of which every row has one; `obstacle` is what kept rows on
    the device that wanted up."""
    if done.attempts:
        return _of_both(done, plan, reason, obstacle, agent)
    edge, parts = done.model.edge, done.parts
    assert edge is not None  # noqa: S101  who else
    here = Route.EXIT if edge.exits else Route.EDGE
    return Answer(
        outputs=parts.edge[0][1],
        route=here,
        reason=reason if obstacle is None else obstacle,
        degraded=obstacle is not None,
        plan=plan,
        timings=Timings(time.monotonic() - done.signals.arrived_s, done.edge_s),
        id=done.id,
        routes=(here,) * parts.rows,
        labels=edge.signature.labels,
        hardness=_hardness(done),
        agent=agent,
        version=UPWELL_VERSION,
        **edge.facts(done.edge_digest),
    )


def _of_both(done: RequestRecord, plan: Plan, reason: Reason, obstacle: Reason | None, agent: str) -> Answer:
    """The cloud's answer for rows that it answered, the device's for the others."""
    edge, parts = done.model.edge, done.parts
    answered = [(attempt, attempt.outcome) for attempt in done.attempts if isinstance(attempt.outcome, CloudReply)]
    replies = [(attempt.rows, outcome) for attempt, outcome in answered]
    misses = [attempt.outcome for attempt in done.attempts if isinstance(attempt.outcome, CloudFailure)]
    gateway = next((reply for _, reply in replies if reply.is_degraded), None)
    failed = [miss for miss in misses if miss.reason in DEGRADED]
    if failed:
        reason = failed[0].reason
    elif gateway is not None and gateway.reason is not None:
        reason = gateway.reason
    elif obstacle is not None:
        reason = obstacle
    elif misses:
        reason = misses[0].reason
    elif any(attempt.outcome is None for attempt in done.attempts):
        reason = Reason.EDGE_FASTER
    here = Route.EXIT if edge and edge.exits else Route.EDGE
    routes = parts.routes({row: _route(attempt, edge) for attempt, _ in answered for row in attempt.rows}, here)
    kinds = set(routes)
    way = next((attempt.decision.way for attempt, _ in answered if attempt.decision.way is not None), None)
    head = done.model.head(way.key) if way is not None else None
    device = edge if here in kinds else head.edge if head is not None else None
    return Answer(
        outputs=parts.merged(replies, edge.signature if edge else None),
        route=routes[0] if len(kinds) == 1 else Route.MIXED,
        reason=reason,
        degraded=bool(failed) or obstacle is not None or gateway is not None,
        plan=plan,
        timings=_timings(done.signals.arrived_s, done.edge_s, done.attempts),
        id=done.id,
        routes=routes,
        cloud_digest=replies[0][1].digest if replies else "",
        cut=head.cut.name if head is not None else "",
        labels=edge.signature.labels if edge else {},
        hardness=_hardness(done),
        agent=agent,
        version=UPWELL_VERSION,
        **(device.facts(done.edge_digest if device is edge else "") if device is not None else {}),
    )


def _hardness(done: RequestRecord) -> tuple[float, ...]:
    """By row; empty where the device scored none."""
    found = done.hardness
    return tuple(found.get(row, math.nan) for row in done.parts.all) if found else ()


def _route(attempt: CloudAttempt, edge: EdgeModel | None) -> Route:
    """Who answers the rows of an ascent that was answered."""
    return Route.SPLIT if attempt.decision.way is not None or (edge and edge.exits) else Route.CLOUD


def _timings(arrived_s: float, edge_s: float | None, attempts: Sequence[CloudAttempt]) -> Timings:
    """Where the time of a request went that arrived at `arrived_s` and is answered now."""
    replies = [attempt.outcome for attempt in attempts if isinstance(attempt.outcome, CloudReply)]
    slowest = max(replies, key=lambda reply: reply.total_s, default=None)
    return Timings(
        total_s=time.monotonic() - arrived_s,
        edge_s=edge_s,
        uplink_s=max((attempt.elapsed_s for attempt in attempts), default=None),
        cloud_queue_s=slowest.queue_s if slowest else None,
        cloud_compute_s=slowest.compute_s if slowest else None,
    )
