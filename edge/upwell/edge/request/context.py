"""What a request is handled with: what all requests share, and its place in a trace where it has one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from upwell.edge.admission.rate_limits import Admission
from upwell.edge.admission.schedulability import RunRequest
from upwell.edge.observe.metrics import AgentMetrics
from upwell.edge.policy.router_service import RouterService
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.errors import Refused, UpwellError
from upwell.shared.routing.decide.state import Decision, Signals
from upwell.shared.telemetry.current import note_trace
from upwell.shared.telemetry.trace import Place, Trace
from upwell.shared.telemetry.tracer import Tracer


@dataclass(frozen=True)
class RequestContext:
    """What every request is handled with; of a request that is in a trace, a copy of its own.

    `agent` is the name that answers carry. `trace` is set where `tracer` records the request; `traceparent` is what the
    cloud is told of one that is not recorded.
    """

    router: RouterService
    uplink: Uplink | None
    metrics: AgentMetrics
    admission: Admission
    tracer: Tracer | None = None
    agent: str = ""
    trace: Trace | None = None
    traceparent: str = ""

    def placed(self, traceparent: str, arrived_s: float) -> RequestContext:
        """The desk for a request whose caller sent `traceparent`; without a tracer that is passed on as it is."""
        if self.tracer is None:
            place = Place.parse(traceparent)
            return self if place is None else replace(self, traceparent=str(place))
        trace = self.tracer.begin(traceparent, arrived_s)
        if trace is None:
            return replace(self, traceparent=str(Place.parse(traceparent) or Place.unrecorded()))
        note_trace(trace.root.trace_id)
        return replace(self, trace=trace)

    def admitted(self, signals: Signals, decision: Decision, arrived_s: float) -> RunRequest:
        """What the request may claim of the device. Raises `Refused` where its source sends more than it may."""
        request_facts = signals.request_facts
        try:
            return self.admission.admit(request_facts.model, decision.verdict.settings, request_facts.tags, arrived_s)
        except Refused:
            self.router.give_back(decision)
            raise

    def turned_away(self, signals: Signals, decision: Decision | None, error: UpwellError) -> UpwellError:
        """The error; a request that is refused does not count against the rate of its source."""
        if isinstance(error, Refused) and decision is not None:
            request_facts = signals.request_facts
            self.admission.give_back(request_facts.model, decision.verdict.settings, request_facts.tags)
        return error
