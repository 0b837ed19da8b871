"""The context of a request: what all requests share, and the request's place in a trace, if any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from upwell.edge.admission.request_admission import Admission
from upwell.edge.policy.router_service import RouterService
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.oip.introspection import Seen
from upwell.shared.telemetry.log_context import note_trace
from upwell.shared.telemetry.tracing import Place, Trace, Tracer


class RequestMetrics(Protocol):
    """Counts the bytes sent to the cloud."""

    def sent(self, model: str, size_bytes: int) -> None:
        """Count a message of this size, sent for this model."""


@dataclass(frozen=True)
class RequestContext:
    """The context shared by all requests; a traced request has its own copy.

    `uplinks` are the ways to the cloud by network interface, empty without a cloud. `agent` is the name that answers
    carry. `seen` is how models in the cloud resize pictures, as far as known, by the
    model's name here. `trace` is set if `tracer` records the request; `traceparent` is what the cloud is sent if it is
    not recorded.
    """

    router: RouterService
    uplinks: Mapping[str, Uplink]
    metrics: RequestMetrics
    admission: Admission
    tracer: Tracer | None = None
    agent: str = ""
    seen: Mapping[str, Seen] = field(default_factory=dict)
    trace: Trace | None = None
    traceparent: str = ""

    def placed(self, traceparent: str, arrived_s: float) -> RequestContext:
        """The context for a request whose caller sent `traceparent`; without a tracer it is passed on unchanged."""
        if self.tracer is None:
            place = Place.parse(traceparent)
            return self if place is None else replace(self, traceparent=str(place))
        trace = self.tracer.begin(traceparent, arrived_s)
        if trace is None:
            return replace(self, traceparent=str(Place.parse(traceparent) or Place.unrecorded()))
        note_trace(trace.root.trace_id)
        return replace(self, trace=trace)
