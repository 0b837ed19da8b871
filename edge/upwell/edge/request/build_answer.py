"""Building the answer from the outputs of the device and the cloud."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from importlib.metadata import version as package_version

from upwell.edge.models.edge_model import NO_FACTS, Head
from upwell.edge.request.answer import Answer, Timings
from upwell.edge.request.request import Replies
from upwell.edge.request.request_record import RequestRecord
from upwell.edge.uplink.cloud_call import CloudReply
from upwell.shared.routing.flow.request_flow import RequestFlow
from upwell.shared.routing.reasons import Route

UPWELL_VERSION = package_version("upwell")


def build_answer(done: RequestRecord, flow: RequestFlow, agent: str) -> Answer:
    """Build the answer of the agent called `agent` to a request whose rows all have answers."""
    device = edge = done.model.edge
    routes = flow.routes
    replies: Replies = ()
    head: Head | None = None
    slowest: CloudReply | None = None
    if flow.attempts:  # most have none
        answered = [(attempt, attempt.outcome) for attempt in flow.attempts if isinstance(attempt.outcome, CloudReply)]
        replies = [(attempt.rows, reply) for attempt, reply in answered]
        split_route = next((one.decision.split_route for one, _ in answered if one.decision.split_route), None)
        head = done.model.head(split_route.key) if split_route is not None else None
        if replies and {Route.EDGE, Route.EXIT}.isdisjoint(routes):
            device = head.edge if head is not None else None
        slowest = max((reply for _, reply in answered), key=lambda reply: reply.total_s, default=None)
    outputs = done.parts.merged(replies, edge.signature if edge else None)
    timings = Timings(time.monotonic() - done.signals.arrived_s, done.edge_s)  # which includes the merge
    if flow.attempts:
        timings = replace(
            timings,
            uplink_s=max(attempt.elapsed_s for attempt in flow.attempts),
            cloud_queue_s=slowest.queue_s if slowest else None,
            cloud_compute_s=slowest.compute_s if slowest else None,
        )
    route = routes[0] if routes.count(routes[0]) == len(routes) else Route.MIXED
    facts = NO_FACTS if device is None else device.facts(done.edge_digest if device is edge else "")
    edge_digest, accelerator, edge_state = facts
    cloud_digest, cut = replies[0][1].digest if replies else "", head.cut.name if head is not None else ""
    labels, hardness = edge.signature.labels if edge else {}, _hardness(done) if done.hardness else ()
    # By position: by keyword it takes five times as long.
    return Answer(
        outputs, route, flow.answer_reason, flow.is_degraded, flow.plan, timings, done.id, routes, edge_digest,
        cloud_digest, "", (), accelerator, edge_state, cut, labels, hardness, agent, UPWELL_VERSION,
    )  # fmt: skip


def _hardness(done: RequestRecord) -> tuple[float, ...]:
    return tuple(done.hardness.get(row, math.nan) for row in done.parts.all)
