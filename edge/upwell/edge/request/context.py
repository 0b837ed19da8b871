"""What a request is handled with: what all requests share, and its place in a trace where it has one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from upwell.edge.admission.rate_limits import Admission
from upwell.edge.policy.router_service import RouterService
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.telemetry.current import note_trace
from upwell.shared.telemetry.trace import Place, Trace
from upwell.shared.telemetry.tracer import Tracer


class RequestMetrics(Protocol):
    """Who counts the bytes that leave."""

    def sent(self, model: str, size_bytes: int) -> None:
        """A message of so many bytes was sent for this model."""


@dataclass(frozen=True)
class RequestContext:
    """What every request is handled with; of a request that is in a trace, a copy of its own.

    `agent` is the name that answers carry. `trace` is set where `tracer` records the request; `traceparent` is what the
    cloud is told of one that is not recorded.
    """

    router: RouterService
    uplink: Uplink | None
    metrics: RequestMetrics
    admission: Admission
    tracer: Tracer | None = None
    agent: str = ""
    trace: Trace | None = None
    traceparent: str = ""

    def placed(self, traceparent: str, arrived_s: float) -> RequestContext:
        """The context for a request whose caller sent `traceparent`; without a tracer that is passed on as it is."""
        if self.tracer is None:
            place = Place.parse(traceparent)
            return self if place is None else replace(self, traceparent=str(place))
        trace = self.tracer.begin(traceparent, arrived_s)
        if trace is None:
            return replace(self, traceparent=str(Place.parse(traceparent) or Place.unrecorded()))
        note_trace(trace.root.trace_id)
        return replace(self, trace=trace)
