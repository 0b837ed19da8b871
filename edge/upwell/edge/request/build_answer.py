"""Building the answer from the outputs of the device and the cloud."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from importlib.metadata import version as package_version

from upwell.edge.models.edge_model import NO_FACTS, Head
from upwell.edge.request.answer import Answer, Timings
from upwell.edge.request.record import RequestRecord
from upwell.edge.request.request import Replies
from upwell.edge.uplink.calls import CloudReply
from upwell.shared.routing.flow.request_flow import RequestFlow
from upwell.shared.routing.reasons import Route

UPWELL_VERSION = package_version("upwell")


def build_answer(done: RequestRecord, flow: RequestFlow, agent: str) -> Answer:
    """Build the answer of the agent called `agent` to a request whose rows all have answers."""
    device = edge = done.model.edge
    routes, timings = flow.routes, Timings(time.monotonic() - done.signals.arrived_s, done.edge_s)
    replies: Replies = ()
    head: Head | None = None
    if flow.attempts:  # most have none
        answered = [(attempt, attempt.outcome) for attempt in flow.attempts if isinstance(attempt.outcome, CloudReply)]
        replies = [(attempt.rows, reply) for attempt, reply in answered]
        route = next((attempt.decision.split_route for attempt, _ in answered if attempt.decision.split_route), None)
        head = done.model.head(route.key) if route is not None else None
        if replies and {Route.EDGE, Route.EXIT}.isdisjoint(routes):
            device = head.edge if head is not None else None
        slowest = max((reply for _, reply in answered), key=lambda reply: reply.total_s, default=None)
        timings = replace(
            timings,
            uplink_s=max(attempt.elapsed_s for attempt in flow.attempts),
            cloud_queue_s=slowest.queue_s if slowest else None,
            cloud_compute_s=slowest.compute_s if slowest else None,
        )
    return Answer(
        outputs=done.parts.merged(replies, edge.signature if edge else None),
        route=routes[0] if routes.count(routes[0]) == len(routes) else Route.MIXED,
        reason=flow.answer_reason,
        degraded=flow.is_degraded,
        plan=flow.plan,
        timings=timings,
        id=done.id,
        routes=routes,
        spool_id="",
        spool_rows=(),
        cloud_digest=replies[0][1].digest if replies else "",
        cut=head.cut.name if head is not None else "",
        labels=edge.signature.labels if edge else {},
        hardness=_hardness(done) if done.hardness else (),
        agent=agent,
        version=UPWELL_VERSION,
        **(NO_FACTS if device is None else device.facts(done.edge_digest if device is edge else "")),
    )


def _hardness(done: RequestRecord) -> tuple[float, ...]:
    return tuple(done.hardness.get(row, math.nan) for row in done.parts.all)
