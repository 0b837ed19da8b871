"""The answer, put together of what the device and the cloud gave."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib.metadata import version as package_version

from upwell.edge.request.answer import Answer, Timings
from upwell.edge.request.record import RequestRecord
from upwell.edge.uplink.calls import CloudReply
from upwell.shared.routing.flow.attempt import CloudAttempt
from upwell.shared.routing.flow.flow import RequestFlow
from upwell.shared.routing.reasons import Route

UPWELL_VERSION = package_version("upwell")


def build_answer(done: RequestRecord, flow: RequestFlow, agent: str) -> Answer:
    """The answer of the agent of that name to a request of which every row has one."""
    edge, parts, routes = done.model.edge, done.parts, flow.routes
    if not flow.attempts:
        return _of_device(done, flow, agent)
    answered = [(attempt, attempt.outcome) for attempt in flow.attempts if isinstance(attempt.outcome, CloudReply)]
    replies = [(attempt.rows, outcome) for attempt, outcome in answered]
    way = next((attempt.decision.way for attempt, _ in answered if attempt.decision.way is not None), None)
    head = done.model.head(way.key) if way is not None else None
    is_here = not replies or not {Route.EDGE, Route.EXIT}.isdisjoint(routes)
    device = edge if is_here else head.edge if head is not None else None
    return Answer(
        outputs=parts.merged(replies, edge.signature if edge else None),
        route=routes[0] if len(set(routes)) == 1 else Route.MIXED,
        reason=flow.answer_reason,
        degraded=flow.is_degraded,
        plan=flow.plan,
        timings=_timings(done.signals.arrived_s, done.edge_s, flow.attempts),
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


def _of_device(done: RequestRecord, flow: RequestFlow, agent: str) -> Answer:
    """The same where nothing was sent up, without asking what of it came back."""
    edge, parts, routes = done.model.edge, done.parts, flow.routes
    assert edge is not None  # noqa: S101  who else
    return Answer(
        outputs=parts.edge[0][1],
        route=routes[0],
        reason=flow.answer_reason,
        degraded=flow.is_degraded,
        plan=flow.plan,
        timings=Timings(time.monotonic() - done.signals.arrived_s, done.edge_s),
        id=done.id,
        routes=routes,
        labels=edge.signature.labels,
        hardness=_hardness(done),
        agent=agent,
        version=UPWELL_VERSION,
        **edge.facts(done.edge_digest),
    )


def _hardness(done: RequestRecord) -> tuple[float, ...]:
    """By row; empty where the device scored none."""
    found = done.hardness
    return tuple(found.get(row, math.nan) for row in done.parts.all) if found else ()


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
