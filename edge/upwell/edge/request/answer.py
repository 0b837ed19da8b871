"""The agent's answer: the outputs, the facts about them, and how it is built from device and cloud."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from upwell.edge.models.edge_model import NO_FACTS, Head
from upwell.edge.request.request import Replies, RequestRecord
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.oip.dataplane import Parameter
from upwell.shared.routing.flow.request_flow import RequestFlow
from upwell.shared.routing.reasons import Plan, Reason, Route
from upwell.shared.tensors import Array
from upwell.shared.value_classes import quick, value_class


@value_class
class Timings:
    """The times of the parts of a request, in seconds; None for a part that did not take place.

    `uplink_s` is the device's whole wait for the cloud, including the cloud's own two parts.
    """

    total_s: float
    edge_s: float | None = None
    uplink_s: float | None = None
    cloud_queue_s: float | None = None
    cloud_compute_s: float | None = None


@quick
@dataclass(frozen=True)
class Answer:
    """One answer with its reason. `routes` has one entry per row; `route` is `mixed` if they differ.

    `spool_id` is the id of the case spooled for the cloud, empty without one; its result comes later, for the rows
    `spool_rows`. If the device took part, `accelerator` names what ran nodes of its model by evidence, or `cpu`, and
    `edge_state` says whether that is as configured (`ready`, `compiling`, `fallback`). `cut` is the cut of a split
    model answered by head and tail.

    `labels` are the class names by output, if the device's `model.yaml` has some: those of its last dimension, or of a
    detection's class. `hardness` has a number for each row, by the policy's measure: NaN if the device did not score it
    (it was offloaded at once, or its scores are not finite). It is empty if the policy needs none. `agent` is the name
    of the agent that answered, `version` that of its Upwell.
    """

    outputs: Mapping[str, Array]
    route: Route
    reason: Reason
    degraded: bool
    plan: Plan
    timings: Timings
    id: str
    routes: tuple[Route, ...]
    edge_digest: str = ""
    cloud_digest: str = ""
    spool_id: str = ""
    spool_rows: tuple[int, ...] = ()
    accelerator: str = ""
    edge_state: str = ""
    cut: str = ""
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hardness: tuple[float, ...] = ()
    agent: str = ""
    version: str = ""

    def parameters(self) -> dict[str, Parameter]:
        """The facts as Open Inference Protocol response parameters (`upwell.route`, ...); times in milliseconds."""
        facts: dict[str, Parameter] = {
            "upwell.route": str(self.route),
            "upwell.plan": str(self.plan),
            "upwell.reason": str(self.reason),
            "upwell.degraded": self.degraded,
        }
        if self.route is Route.MIXED:
            facts["upwell.routes"] = ",".join(str(route) for route in self.routes)
        if self.hardness:
            facts["upwell.hardness"] = ",".join(f"{value:.6g}" for value in self.hardness)
        times = {
            "upwell.edge_ms": self.timings.edge_s,
            "upwell.uplink_ms": self.timings.uplink_s,
            "upwell.cloud_queue_ms": self.timings.cloud_queue_s,
            "upwell.cloud_compute_ms": self.timings.cloud_compute_s,
        }
        facts.update({name: seconds * 1e3 for name, seconds in times.items() if seconds is not None})
        names = {
            "upwell.edge_digest": self.edge_digest,
            "upwell.cloud_digest": self.cloud_digest,
            "upwell.spool_id": self.spool_id,
            "upwell.accelerator": self.accelerator,
            "upwell.edge_state": self.edge_state,
            "upwell.cut": self.cut,
            "upwell.agent": self.agent,
            "upwell.version": self.version,
        }
        facts.update({key: name for key, name in names.items() if name})
        return facts


@cache
def upwell_version() -> str:
    """The version of this Upwell. The first call takes milliseconds, so the agent makes it before any request."""
    from importlib.metadata import version

    return version("upwell")


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
    facts = NO_FACTS
    if device is not None:
        facts = device.facts(done.edge_digest if device is edge else "", was_refused=done.was_refused)
    edge_digest, accelerator, edge_state = facts
    cloud_digest, cut = replies[0][1].digest if replies else "", head.cut.name if head is not None else ""
    labels, hardness = edge.signature.labels if edge else {}, _hardness(done) if done.hardness else ()
    # By position: by keyword it takes five times as long.
    return Answer(
        outputs, route, flow.answer_reason, flow.is_degraded, flow.plan, timings, done.id, routes, edge_digest,
        cloud_digest, "", (), accelerator, edge_state, cut, labels, hardness, agent, upwell_version(),
    )  # fmt: skip


def _hardness(done: RequestRecord) -> tuple[float, ...]:
    return tuple(done.hardness.get(row, math.nan) for row in done.parts.all)
