"""The agent's answer: the outputs and the facts about them."""

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
