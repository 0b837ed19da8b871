"""One request for the flight recorder: the values from the request path, and their JSON, made on another thread."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, NamedTuple

from upwell.edge.request.answer import Answer
from upwell.edge.request.request import RequestRecord
from upwell.shared.routing.decide.router_state import RouterState, SplitRoute
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.estimators.link_estimate import LinkEstimate
from upwell.shared.routing.flow.cloud_attempt import LinkWait
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import HardSettings, LowerQuality
from upwell.shared.routing.reasons import Plan, Reason, Route

MOST_ROWS = 16
"""Maximum number of rows recorded; for larger requests their count is recorded as well."""
MOST_TAGS = 16
LONGEST_TAG = 100
LONGEST_ID = 200
LONGEST_TEXT = 500


class DecisionTrace(NamedTuple):
    """What is told of a decision: see `Decision`."""

    plan: Plan
    reason: Reason
    verdict: Verdict
    deadline_s: float
    give_up_s: float
    fallback_start_s: float
    up_rows: tuple[int, ...]
    kept_rows: tuple[int, ...]
    obstacle: Reason | None
    refusal: str
    predicted_edge_s: float
    predicted_cloud_s: float
    split_route: SplitRoute | None
    chance: float
    needed_chance: float
    quality: LowerQuality | None
    interface: str
    threshold: float


class RequestTrace(NamedTuple):
    """The facts about a finished request: its own, those of its signals, of the first decision (as in `DecisionTrace`)
    and of the answer (`answer_`...; without meaning if it ended in an error).

    Flat, since the garbage collector visits each object that stays: with the request's own objects in a trace, a fifth
    of what the agent adds to the runtime was garbage collection. There are no inputs or outputs, and of an error its
    type and text alone, since its traceback would keep the inputs in memory. `link` and `breakers` are the router's at
    the end of the request. `ended_s` is monotonic.
    """

    id: str
    row_sizes_bytes: tuple[int, ...]
    tags: Mapping[str, str]
    misses: Sequence[CloudFailure]
    error: tuple[str, str]
    second: DecisionTrace | None
    hardness: Mapping[int, float]
    edge_s: float | None
    uplink_s: float | None
    link_wait: LinkWait | None
    link: LinkEstimate
    breakers: Mapping[str, Breaker]
    policy_digest: str
    ended_s: float

    wall_time_s: float
    model: str
    up_sizes_bytes: tuple[int, ...]
    arrived_s: float
    caller_deadline_s: float
    edge_ahead: int
    has_edge: bool
    has_cloud: bool
    has_scores: bool

    plan: Plan
    reason: Reason
    verdict: Verdict
    deadline_s: float
    give_up_s: float
    fallback_start_s: float
    up_rows: tuple[int, ...]
    kept_rows: tuple[int, ...]
    obstacle: Reason | None
    refusal: str
    predicted_edge_s: float
    predicted_cloud_s: float
    split_route: SplitRoute | None
    chance: float
    needed_chance: float
    quality: LowerQuality | None
    interface: str
    threshold: float

    answer_plan: str
    answer_route: str
    answer_reason: str
    answer_routes: tuple[Route, ...]
    answer_degraded: bool
    answer_total_s: float
    answer_edge_s: float | None
    answer_uplink_s: float | None
    answer_cloud_queue_s: float | None
    answer_cloud_compute_s: float | None
    answer_edge_digest: str
    answer_accelerator: str
    answer_edge_state: str
    answer_cloud_digest: str
    answer_spool_id: str


# Each in the order of the fields above.
_of_signals = attrgetter(
    "request_facts.wall_time_s", "request_facts.model", "up_sizes_bytes", "arrived_s", "caller_deadline_s",
    "edge_ahead", "has_edge", "has_cloud", "has_scores",
)  # fmt: skip
_of_decision = attrgetter(*DecisionTrace._fields)
_of_answer = attrgetter(
    "plan", "route", "reason", "routes", "degraded", "timings.total_s", "timings.edge_s", "timings.uplink_s",
    "timings.cloud_queue_s", "timings.cloud_compute_s", "edge_digest", "accelerator", "edge_state", "cloud_digest",
    "spool_id",
)  # fmt: skip
_NO_ANSWER = ("", "", "", (), False, math.nan, None, None, None, None, "", "", "", "", "")
_NO_MISSES: Sequence[CloudFailure] = ()
_NO_ERROR = ("", "")


def trace_of(
    done: RequestRecord, ended: Answer | Exception, state: RouterState, ended_s: float, policy_digest: str = ""
) -> RequestTrace:
    """The trace of a request that ended with an answer or an error; made in microseconds."""
    misses, uplink_s, link_wait = _NO_MISSES, None, None
    if done.attempts:
        misses = [a.outcome for a in done.attempts if isinstance(a.outcome, CloudFailure)]
        uplink_s = max(attempt.elapsed_s for attempt in done.attempts)
        link_wait = next((attempt.link_wait for attempt in done.attempts if attempt.link_wait is not None), None)
    if state.others:
        state = state.over((done.second or done.first).interface)
    if isinstance(ended, Answer):
        answer, error = _of_answer(ended), _NO_ERROR
    else:
        answer, error = _NO_ANSWER, (type(ended).__name__, str(ended))
    signals, second = done.signals, done.second
    # `_make` takes a ninth of the time that 56 keywords take.
    return RequestTrace._make((
        done.id, signals.row_sizes_bytes, signals.request_facts.tags, misses, error,
        None if second is None else DecisionTrace._make(_of_decision(second)), done.hardness, done.edge_s, uplink_s,
        link_wait, state.link, state.breakers, policy_digest, ended_s,
        *_of_signals(signals), *_of_decision(done.first), *answer,
    ))  # fmt: skip


_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))


def to_line(request_trace: RequestTrace) -> bytes:
    """The trace as one line of JSON, with null for values that are not finite and long text truncated."""
    return json_line(record(request_trace))


def json_line(trace: dict[str, Any]) -> bytes:
    """A line of the recorder, with null for numbers that JSON cannot represent."""
    try:
        return _ENCODER.encode(trace).encode() + b"\n"
    except ValueError:  # seldom, since `record` has null already for what usually is not finite
        return _ENCODER.encode(_finite(trace)).encode() + b"\n"


def record(request_trace: RequestTrace) -> dict[str, Any]:
    """The trace as an object for JSON; durations in seconds, times in seconds since the request's arrival."""
    arrived_s, deadline_s, ended_s = request_trace.arrived_s, request_trace.deadline_s, request_trace.ended_s
    verdict, second, link_wait = request_trace.verdict, request_trace.second, request_trace.link_wait
    settings, hard = verdict.settings, verdict.settings.hard
    decisions = (request_trace,) if second is None else (request_trace, second)
    return {
        "id": request_trace.id[:LONGEST_ID],
        "time": request_trace.wall_time_s,
        "model": request_trace.model[:LONGEST_ID],
        "tags": {name[:LONGEST_TAG]: value[:LONGEST_TAG] for name, value in [*request_trace.tags.items()][:MOST_TAGS]},
        "rows": len(request_trace.row_sizes_bytes),
        "row_sizes_bytes": list(request_trace.row_sizes_bytes[:MOST_ROWS]),
        "up_sizes_bytes": list(request_trace.up_sizes_bytes[:MOST_ROWS]),
        "caller_deadline_s": _known(request_trace.caller_deadline_s - arrived_s),
        "deadline_s": deadline_s - arrived_s,
        "queue_ahead": request_trace.edge_ahead,
        "has_edge": request_trace.has_edge,
        "has_cloud": request_trace.has_cloud,
        "has_scores": request_trace.has_scores,
        "policy": {
            "digest": request_trace.policy_digest,
            "rule": verdict.rule,
            "route": verdict.route,
            "egress_rule": verdict.egress_rule,
            "failed_rule": verdict.failed_rule,
            "objective": settings.objective,
            "confidence": settings.confidence,
            "deadline_s": settings.deadline_s,
            "large_above_bytes": _known(settings.large_above_bytes),
            "measure": None if hard is None else hard.measure,
            "threshold": None if hard is None else _threshold(second, hard),
            "calibrated": None if hard is None else hard.calibrated,
            "priority": settings.priority,
        },
        **_network(request_trace.link, request_trace.breakers, ended_s),
        "decisions": [_decision(decision, arrived_s) for decision in decisions],
        "hardness": {str(row): value for row, value in [*request_trace.hardness.items()][:MOST_ROWS]},
        "misses": [{"reason": str(miss.reason), "text": miss.detail[:LONGEST_TEXT]} for miss in request_trace.misses],
        "took_s": ended_s - arrived_s,
        "edge_s": request_trace.edge_s,
        "uplink_s": request_trace.uplink_s,
        "link_wait": None if link_wait is None else asdict(link_wait),
        "late_s": ended_s - deadline_s,
        **_outcome(request_trace),
    }


def _threshold(second: DecisionTrace | None, hard: HardSettings) -> float:
    """What the rows were held against; the policy's own where none was scored."""
    return hard.threshold if second is None or math.isnan(second.threshold) else second.threshold


def _network(link: LinkEstimate, breakers: Mapping[str, Breaker], now_s: float) -> dict[str, Any]:
    up = link.inverse_bandwidth_s_per_byte
    return {
        "link": {
            "rtt_s": _known(link.rtt_s),
            "up_bytes_per_s": 1.0 / up if up > 0 else None,
            "age_s": _known(now_s - link.last_at_s),
        },
        "breakers_open": [key for key, breaker in breakers.items() if breaker.is_open],
    }


def _decision(decision: DecisionTrace | RequestTrace, arrived_s: float) -> dict[str, Any]:
    """A decision; of a request the first one."""
    quality, split_route, obstacle = decision.quality, decision.split_route, decision.obstacle
    return {
        "plan": str(decision.plan),
        "reason": str(decision.reason),
        "quality": None if quality is None else quality.quality,
        "interface": decision.interface or None,
        "way": None if split_route is None else split_route.key[:LONGEST_ID],
        "obstacle": None if obstacle is None else str(obstacle),
        "up_rows": list(decision.up_rows[:MOST_ROWS]),
        "kept_rows": list(decision.kept_rows[:MOST_ROWS]),
        "predicted_edge_s": _known(decision.predicted_edge_s),
        "predicted_cloud_s": _known(decision.predicted_cloud_s),
        "chance": _known(decision.chance),
        "needed_chance": _known(decision.needed_chance),
        "give_up_s": _known(decision.give_up_s - arrived_s),
        "fallback_start_s": _known(decision.fallback_start_s - arrived_s),
        "refusal": decision.refusal[:LONGEST_TEXT],
    }


def _outcome(request_trace: RequestTrace) -> dict[str, Any]:
    error, text = request_trace.error
    if error:
        return {"answer": None, "error": {"type": error, "text": text[:LONGEST_TEXT]}}
    told = {
        "plan": str(request_trace.answer_plan),
        "route": str(request_trace.answer_route),
        "reason": str(request_trace.answer_reason),
        "routes": [str(route) for route in request_trace.answer_routes[:MOST_ROWS]],
        "degraded": request_trace.answer_degraded,
        "total_s": request_trace.answer_total_s,
        "edge_s": request_trace.answer_edge_s,
        "uplink_s": request_trace.answer_uplink_s,
        "cloud_queue_s": request_trace.answer_cloud_queue_s,
        "cloud_compute_s": request_trace.answer_cloud_compute_s,
        "edge_digest": request_trace.answer_edge_digest[:LONGEST_ID],
        "accelerator": request_trace.answer_accelerator[:LONGEST_ID],
        "edge_state": request_trace.answer_edge_state[:LONGEST_ID],
        "cloud_digest": request_trace.answer_cloud_digest[:LONGEST_ID],
        "spool_id": request_trace.answer_spool_id[:LONGEST_ID],
    }
    return {"answer": told, "error": None}


def _known(value: float) -> float | None:
    """Null for a time that nobody knows or has set, which is not a number or infinite."""
    return value if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value
