"""How the answer to a request is put together, once all that can answer it has."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib.metadata import version as package_version

from upwell.edge.answer import Answer, Timings
from upwell.edge.ascent import Ascent
from upwell.edge.handled import Handled
from upwell.edge.models.served import EdgeModel
from upwell.edge.uplink.uplink import CloudMiss, CloudReply
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason, Route

UPWELL_VERSION = package_version("upwell")


def answer_of(done: Handled, plan: Plan, reason: Reason, obstacle: Reason | None, agent: str) -> Answer:
    """The answer of the agent of that name to a request of which every row has one; `obstacle` is what kept rows on
    the device that wanted up."""
    if done.ascents:
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


def _of_both(done: Handled, plan: Plan, reason: Reason, obstacle: Reason | None, agent: str) -> Answer:
    """The cloud's answer for rows that it answered, the device's for the others."""
    edge, parts = done.model.edge, done.parts
    answered = [(ascent, ascent.outcome) for ascent in done.ascents if isinstance(ascent.outcome, CloudReply)]
    replies = [(ascent.rows, outcome) for ascent, outcome in answered]
    misses = [ascent.outcome for ascent in done.ascents if isinstance(ascent.outcome, CloudMiss)]
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
    elif any(ascent.outcome is None for ascent in done.ascents):
        reason = Reason.EDGE_FASTER
    here = Route.EXIT if edge and edge.exits else Route.EDGE
    routes = parts.routes({row: _route(ascent, edge) for ascent, _ in answered for row in ascent.rows}, here)
    kinds = set(routes)
    way = next((ascent.decision.way for ascent, _ in answered if ascent.decision.way is not None), None)
    head = done.model.head(way.key) if way is not None else None
    device = edge if here in kinds else head.edge if head is not None else None
    return Answer(
        outputs=parts.merged(replies, edge.signature if edge else None),
        route=routes[0] if len(kinds) == 1 else Route.MIXED,
        reason=reason,
        degraded=bool(failed) or obstacle is not None or gateway is not None,
        plan=plan,
        timings=_timings(done.signals.arrived_s, done.edge_s, done.ascents),
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


def _hardness(done: Handled) -> tuple[float, ...]:
    """By row; empty where the device scored none."""
    found = done.hardness
    return tuple(found.get(row, math.nan) for row in done.parts.all) if found else ()


def _route(ascent: Ascent, edge: EdgeModel | None) -> Route:
    """Who answers the rows of an ascent that was answered."""
    return Route.SPLIT if ascent.decision.way is not None or (edge and edge.exits) else Route.CLOUD


def _timings(arrived_s: float, edge_s: float | None, ascents: Sequence[Ascent]) -> Timings:
    """Where the time of a request went that arrived at `arrived_s` and is answered now."""
    replies = [ascent.outcome for ascent in ascents if isinstance(ascent.outcome, CloudReply)]
    slowest = max(replies, key=lambda reply: reply.total_s, default=None)
    return Timings(
        total_s=time.monotonic() - arrived_s,
        edge_s=edge_s,
        uplink_s=max((ascent.elapsed_s for ascent in ascents), default=None),
        cloud_queue_s=slowest.queue_s if slowest else None,
        cloud_compute_s=slowest.compute_s if slowest else None,
    )
