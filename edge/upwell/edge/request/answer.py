"""What the agent gives back: the outputs and the facts about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upwell.shared.oip.dataplane import Parameter
from upwell.shared.routing.reasons import Plan, Reason, Route
from upwell.shared.tensors import Array
from upwell.shared.values import quick


@quick
@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds; None where that part did not take place.

    `uplink_s` is the whole wait for the cloud as the device sees it; the cloud's own two parts lie within it.
    """

    total_s: float
    edge_s: float | None = None
    uplink_s: float | None = None
    cloud_queue_s: float | None = None
    cloud_compute_s: float | None = None


@dataclass(frozen=True)
class Answer:
    """One answer with its reason. `routes` has one entry for each row; `route` is `mixed` where they differ.

    `spool_id` names the case that was kept for the cloud, empty where none was: its result comes later, and is about
    `spool_rows` of the request.
    Where the device had a part, `accelerator` names what ran nodes of its model by the evidence, `cpu` where none did,
    and `edge_state` says whether that is what was asked for (`ready`, `compiling`, `fallback`). `cut` is where a model
    was split that head and tail answered together.

    `labels` are the names of classes by output, where the device's `model.yaml` has some: those of its last dimension,
    or of a detection's class. `hardness` has a number for each row, by the measure of the policy: NaN for one that the
    device did not score (it went up at once, or its scores are not finite). It is empty where none was asked for.
    `agent` is the name of the agent that answered, `version` that of its Upwell.
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
