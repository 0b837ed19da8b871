"""One request for the flight recorder: the values from the request path, and their JSON, made on another thread."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, TypeAlias

from upwell.edge.request.answer import Answer
from upwell.edge.request.request import RequestRecord
from upwell.shared.routing.decide.router_state import RouterState
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.estimators.link_estimate import LinkEstimate
from upwell.shared.routing.flow.flow_actions import CloudFailure

MOST_ROWS = 16
"""Maximum number of rows recorded; for larger requests their count is recorded as well."""
MOST_TAGS = 16
LONGEST_TAG = 100
LONGEST_ID = 200
LONGEST_TEXT = 500

RequestTrace: TypeAlias = tuple[Any, ...]
"""The facts about a finished request, in one flat tuple: its own (`TRACED`), then those of the signals, of the first
decision and of the answer (None for each if it ended in an error).

Flat, since the garbage collector visits each object that stays: with the request's own objects in a trace, a fifth of
what the agent adds to the runtime was garbage collection. There are no inputs or outputs, and of an error its type and
text alone, since its traceback would keep the inputs in memory. `link` and `breakers` are the router's at the end of
the request. `ended_s` is monotonic.
"""

TRACED = (
    "id", "row_sizes_bytes", "tags", "misses", "error", "second", "hardness", "edge_s", "uplink_s", "link_wait",
    "link", "breakers", "policy_digest", "ended_s",
)  # fmt: skip
_SIGNALS = (
    "request_facts.wall_time_s", "request_facts.model", "up_sizes_bytes", "arrived_s", "caller_deadline_s",
    "edge_ahead", "has_edge", "has_cloud", "has_scores",
)  # fmt: skip
_DECISION = (
    "plan", "reason", "verdict", "deadline_s", "give_up_s", "fallback_start_s", "up_rows", "kept_rows", "obstacle",
    "refusal", "predicted_edge_s", "predicted_cloud_s", "split_route", "chance", "needed_chance", "quality",
    "interface",
)  # fmt: skip
_TIMINGS = ("total_s", "edge_s", "uplink_s", "cloud_queue_s", "cloud_compute_s")
_NAMES = ("edge_digest", "accelerator", "edge_state", "cloud_digest", "spool_id")
_ANSWER = ("plan", "route", "reason", "routes", "degraded", *(f"timings.{name}" for name in _TIMINGS), *_NAMES)
_PARTS = (TRACED, _SIGNALS, _DECISION, _ANSWER)

_of_signals, _of_decision, _of_answer = attrgetter(*_SIGNALS), attrgetter(*_DECISION), attrgetter(*_ANSWER)
_NO_ANSWER = (None,) * len(_ANSWER)
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
    return (
        done.id, signals.row_sizes_bytes, signals.request_facts.tags, misses, error,
        None if second is None else _of_decision(second), done.hardness, done.edge_s, uplink_s, link_wait,
        state.link, state.breakers, policy_digest, ended_s,
        *_of_signals(signals), *_of_decision(done.first), *answer,
    )  # fmt: skip


USUAL_BYTES = 1200
"""Memory of a trace of the usual size (bytes)."""
MOST_LETTERS = 200


def is_usual(request_trace: RequestTrace) -> bool:
    """Whether the trace takes about `USUAL_BYTES`: no value in it has a size chosen by a caller."""
    id, row_sizes_bytes, tags, misses, error = request_trace[:5]
    if len(row_sizes_bytes) != 1 or misses:
        return False
    letters = len(id) + len(error[1]) + sum(len(name) + len(value) for name, value in tags.items())
    return bool(letters <= MOST_LETTERS)


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
    values = iter(request_trace)
    own, signals, first, answer = (dict(zip(names, values, strict=False)) for names in _PARTS)
    arrived_s, verdict = signals["arrived_s"], first["verdict"]
    settings, hard = verdict.settings, verdict.settings.hard
    second = None if own["second"] is None else dict(zip(_DECISION, own["second"], strict=True))
    return {
        "id": own["id"][:LONGEST_ID],
        "time": signals["request_facts.wall_time_s"],
        "model": signals["request_facts.model"][:LONGEST_ID],
        "tags": {name[:LONGEST_TAG]: value[:LONGEST_TAG] for name, value in [*own["tags"].items()][:MOST_TAGS]},
        "rows": len(own["row_sizes_bytes"]),
        "row_sizes_bytes": list(own["row_sizes_bytes"][:MOST_ROWS]),
        "up_sizes_bytes": list(signals["up_sizes_bytes"][:MOST_ROWS]),
        "caller_deadline_s": _known(signals["caller_deadline_s"] - arrived_s),
        "deadline_s": first["deadline_s"] - arrived_s,
        "queue_ahead": signals["edge_ahead"],
        "has_edge": signals["has_edge"],
        "has_cloud": signals["has_cloud"],
        "has_scores": signals["has_scores"],
        "policy": {
            "digest": own["policy_digest"],
            "rule": verdict.rule,
            "route": verdict.route,
            "egress_rule": verdict.egress_rule,
            "failed_rule": verdict.failed_rule,
            "objective": settings.objective,
            "confidence": settings.confidence,
            "deadline_s": settings.deadline_s,
            "large_above_bytes": _known(settings.large_above_bytes),
            "measure": None if hard is None else hard.measure,
            "threshold": None if hard is None else hard.threshold,
            "calibrated": None if hard is None else hard.calibrated,
            "priority": settings.priority,
        },
        **_network(own["link"], own["breakers"], own["ended_s"]),
        "decisions": [_decision(decision, arrived_s) for decision in (first, second) if decision is not None],
        "hardness": {str(row): value for row, value in [*own["hardness"].items()][:MOST_ROWS]},
        "misses": [{"reason": str(miss.reason), "text": miss.detail[:LONGEST_TEXT]} for miss in own["misses"]],
        "took_s": own["ended_s"] - arrived_s,
        "edge_s": own["edge_s"],
        "uplink_s": own["uplink_s"],
        "link_wait": None if own["link_wait"] is None else asdict(own["link_wait"]),
        "late_s": own["ended_s"] - first["deadline_s"],
        **_outcome(answer, *own["error"]),
    }


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


def _decision(decision: Mapping[str, Any], arrived_s: float) -> dict[str, Any]:
    quality, split_route, obstacle = decision["quality"], decision["split_route"], decision["obstacle"]
    return {
        "plan": str(decision["plan"]),
        "reason": str(decision["reason"]),
        "quality": None if quality is None else quality.quality,
        "interface": decision["interface"] or None,
        "way": None if split_route is None else split_route.key[:LONGEST_ID],
        "obstacle": None if obstacle is None else str(obstacle),
        "up_rows": list(decision["up_rows"][:MOST_ROWS]),
        "kept_rows": list(decision["kept_rows"][:MOST_ROWS]),
        "predicted_edge_s": _known(decision["predicted_edge_s"]),
        "predicted_cloud_s": _known(decision["predicted_cloud_s"]),
        "chance": _known(decision["chance"]),
        "needed_chance": _known(decision["needed_chance"]),
        "give_up_s": _known(decision["give_up_s"] - arrived_s),
        "fallback_start_s": _known(decision["fallback_start_s"] - arrived_s),
        "refusal": decision["refusal"][:LONGEST_TEXT],
    }


def _outcome(answer: Mapping[str, Any], error: str, text: str) -> dict[str, Any]:
    if error:
        return {"answer": None, "error": {"type": error, "text": text[:LONGEST_TEXT]}}
    told = {
        **{name: str(answer[name]) for name in ("plan", "route", "reason")},
        "routes": [str(route) for route in answer["routes"][:MOST_ROWS]],
        "degraded": answer["degraded"],
        **{name: answer[f"timings.{name}"] for name in _TIMINGS},
        **{name: answer[name][:LONGEST_ID] for name in _NAMES},
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
