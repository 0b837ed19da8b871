"""The spans of a request: the request, each decision, each run on the device, each call to the cloud."""

from __future__ import annotations

import hashlib
import math
import os
import time

from upwell.edge.request.answer import Answer
from upwell.edge.request.request import Request, RequestContext, RequestRecord
from upwell.shared.routing.decide.router_state import Decision
from upwell.shared.telemetry.tracing import Attributes, Trace

REQUEST, DECIDE, EDGE, HEAD, UPLINK = (f"upwell.agent.{part}" for part in ("infer", "decide", "edge", "head", "uplink"))


def add_decision(trace: Trace, decision: Decision, began_s: float) -> None:
    """Add the span of a decision, made before or after the device ran."""
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
    """Add the span of a run on the device that has just ended."""
    ended_s = time.monotonic()
    trace.add(name, ended_s - duration_s, ended_s, {"upwell.rows": rows})


def end_request(
    context: RequestContext, request: Request, done: RequestRecord | None, outcome: Answer | Exception
) -> None:
    """End the request's span, whether it was answered or not; does nothing if it is not recorded.

    Spans leave the device, so they contain only codes: no tags, and no error texts, in which a model may repeat its
    inputs.
    """
    tracer, trace = context.tracer, context.trace
    if tracer is None or trace is None:
        return
    facts: dict[str, bool | int | float | str] = {"upwell.model": request.model}
    if request.id:
        facts["upwell.request_id"] = request.id if _may_leave(context, done) else hashed(request.id)
    elif isinstance(outcome, Answer):
        facts["upwell.request_id"] = outcome.id
    latest_s = request.deadline_s if done is None else min(request.deadline_s, done.first.deadline_s)
    if math.isfinite(latest_s):
        facts["upwell.deadline_ms"] = 1e3 * (latest_s - trace.started_s)
    if done is not None:
        facts["upwell.rows"] = done.parts.rows
    if isinstance(outcome, Answer):
        tracer.end(trace, REQUEST, {**facts, **_of_answer(outcome)})
    else:
        tracer.end(trace, REQUEST, facts, type(outcome).__name__)


def _may_leave(context: RequestContext, done: RequestRecord | None) -> bool:
    """Whether a request may leave, by its decision and by the present policy."""
    if done is None or done.first.verdict.denial is not None:
        return False
    return context.router.judge(done.signals).denial is None


def hashed(told_id: str) -> str:
    """The hashed form, for use off the device, of a caller's id of a request that must stay: equal for equal ids within
    this process. The hash has a secret key, since a few ids could be guessed."""
    digest = hashlib.blake2b(told_id.encode("utf-8", "surrogatepass"), digest_size=16, key=_ID_KEY)
    return f"hash:{digest.hexdigest()}"


_ID_KEY = os.urandom(32)


def _of_answer(answer: Answer) -> Attributes:
    return {
        "upwell.route": str(answer.route),
        "upwell.plan": str(answer.plan),
        "upwell.reason": str(answer.reason),
        "upwell.degraded": answer.degraded,
    }
