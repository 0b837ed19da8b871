"""What the spans of a request say: the request, each decision, each run of the device, each call to the cloud."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from upwell.edge.answer import Answer
from upwell.shared.routing.state import Decision
from upwell.shared.telemetry.trace import Attributes, Trace

if TYPE_CHECKING:
    from upwell.edge.desk import Desk
    from upwell.edge.handled import Handled

REQUEST, DECIDE, EDGE, HEAD, UPLINK = (f"upwell.agent.{part}" for part in ("infer", "decide", "edge", "head", "uplink"))


def add_decision(trace: Trace, decision: Decision, began_s: float) -> None:
    """A decision has been made, before the device ran or after it."""
    facts: dict[str, bool | int | float | str] = {
        "upwell.plan": str(decision.plan),
        "upwell.reason": str(decision.reason),
        "upwell.rows.up": len(decision.up_rows),
        "upwell.rows.kept": len(decision.kept_rows),
    }
    if decision.obstacle is not None:
        facts["upwell.obstacle"] = str(decision.obstacle)
    if math.isfinite(decision.predicted_cloud_s):
        facts["upwell.predicted_cloud_ms"] = 1e3 * decision.predicted_cloud_s
    trace.add(DECIDE, began_s, attributes=facts)


def add_run(trace: Trace, name: str, rows: int, duration_s: float) -> None:
    """A run of the device has ended now, for so many rows."""
    ended_s = time.monotonic()
    trace.add(name, ended_s - duration_s, ended_s, {"upwell.rows": rows})


def end_request(
    desk: Desk, model: str, request_id: str, deadline_s: float, done: Handled | None, outcome: Answer | Exception
) -> None:
    """The request has been answered, or not; nothing happens where it is not recorded."""
    tracer, trace = desk.tracer, desk.trace
    if tracer is None or trace is None:
        return
    facts: dict[str, bool | int | float | str] = {"upwell.model": model, "upwell.request_id": request_id}
    latest_s = deadline_s if done is None else min(deadline_s, done.first.deadline_s)
    if math.isfinite(latest_s):
        facts["upwell.deadline_ms"] = 1e3 * (latest_s - trace.started_s)
    if done is not None:
        facts["upwell.rows"] = done.parts.rows
    if isinstance(outcome, Answer):
        tracer.end(trace, REQUEST, {**facts, **_of_answer(outcome)})
    else:
        tracer.end(trace, REQUEST, facts, f"{type(outcome).__name__}: {outcome}")


def _of_answer(answer: Answer) -> Attributes:
    return {
        "upwell.route": str(answer.route),
        "upwell.plan": str(answer.plan),
        "upwell.reason": str(answer.reason),
        "upwell.degraded": answer.degraded,
    }
