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
from upwell.shared.routing.decide.router_state import Decision, RouterState, Signals
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.estimators.link_estimate import LinkEstimate
from upwell.shared.routing.flow.cloud_attempt import LinkWait
from upwell.shared.routing.flow.flow_actions import CloudFailure

MOST_ROWS = 16
"""Maximum number of rows recorded; for larger requests their count is recorded as well."""
MOST_TAGS = 16
LONGEST_TAG = 100
LONGEST_ID = 200
LONGEST_TEXT = 500

NAMES = ("edge_digest", "accelerator", "edge_state", "cloud_digest", "spool_id")
ANSWER_FIELDS = ("plan", "route", "reason", "routes", "degraded", "timings", *NAMES)
"""The fields of an `Answer` that are recorded."""

answer_fields = attrgetter(*ANSWER_FIELDS)


class RequestTrace(NamedTuple):
    """The facts about a finished request; made in microseconds from immutable values.

    It has no inputs or outputs: `answer` has the `ANSWER_FIELDS`. Without an answer it is None, and `error` has the
    error's type and text. `link` and `breakers` are the router's at the end of the request. `ended_s` is monotonic.
    """

    id: str
    signals: Signals
    first: Decision
    second: Decision | None
    hardness: Mapping[int, float]
    misses: Sequence[CloudFailure]
    edge_s: float | None
    uplink_s: float | None
    link_wait: LinkWait | None
    link: LinkEstimate
    breakers: Mapping[str, Breaker]
    policy_digest: str
    ended_s: float
    answer: tuple[Any, ...] | None
    error: tuple[str, str] = ("", "")

    @classmethod
    def of(
        cls, done: RequestRecord, ended: Answer | Exception, state: RouterState, ended_s: float, policy_digest: str = ""
    ) -> RequestTrace:
        """Make the trace of a request that ended with an answer or an error.

        Only an error's text is kept, since its traceback would keep the inputs in memory.
        """
        misses, uplink_s, link_wait = _NO_MISSES, None, None
        if done.attempts:
            misses = [a.outcome for a in done.attempts if isinstance(a.outcome, CloudFailure)]
            uplink_s = max(attempt.elapsed_s for attempt in done.attempts)
            link_wait = next((attempt.link_wait for attempt in done.attempts if attempt.link_wait is not None), None)
        if state.others:
            state = state.over((done.second or done.first).interface)
        answer, error = None, ("", "")
        if isinstance(ended, Answer):
            answer = answer_fields(ended)
        else:
            error = type(ended).__name__, str(ended)
        return cls(
            done.id, done.signals, done.first, done.second, done.hardness, misses, done.edge_s, uplink_s, link_wait,
            state.link, state.breakers, policy_digest, ended_s, answer, error,
        )  # fmt: skip


USUAL_BYTES = 1200
"""Memory of a trace of the usual size (bytes)."""
MOST_LETTERS = 200


def is_usual(request_trace: RequestTrace) -> bool:
    """Whether the trace takes about `USUAL_BYTES`: no value in it has a size chosen by a caller."""
    if len(request_trace.signals.row_sizes_bytes) != 1 or request_trace.misses:
        return False
    tags = request_trace.signals.request_facts.tags
    letters = (
        len(request_trace.id)
        + len(request_trace.error[1])
        + sum(len(name) + len(value) for name, value in tags.items())
    )
    return letters <= MOST_LETTERS


_NO_MISSES: Sequence[CloudFailure] = ()


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
    signals, verdict = request_trace.signals, request_trace.first.verdict
    settings, request_facts = verdict.settings, signals.request_facts
    hard = settings.hard
    return {
        "id": request_trace.id[:LONGEST_ID],
        "time": request_facts.wall_time_s,
        "model": request_facts.model[:LONGEST_ID],
        "tags": {name[:LONGEST_TAG]: value[:LONGEST_TAG] for name, value in [*request_facts.tags.items()][:MOST_TAGS]},
        "rows": len(signals.row_sizes_bytes),
        "row_sizes_bytes": list(signals.row_sizes_bytes[:MOST_ROWS]),
        "up_sizes_bytes": list(signals.up_sizes_bytes[:MOST_ROWS]),
        "caller_deadline_s": _known(signals.caller_deadline_s - signals.arrived_s),
        "deadline_s": request_trace.first.deadline_s - signals.arrived_s,
        "queue_ahead": signals.edge_ahead,
        "has_edge": signals.has_edge,
        "has_cloud": signals.has_cloud,
        "has_scores": signals.has_scores,
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
            "threshold": None if hard is None else hard.threshold,
            "calibrated": None if hard is None else hard.calibrated,
            "priority": settings.priority,
        },
        **_network(request_trace.link, request_trace.breakers, request_trace.ended_s),
        "decisions": [
            _decision(decision, signals.arrived_s)
            for decision in (request_trace.first, request_trace.second)
            if decision is not None
        ],
        "hardness": {str(row): value for row, value in [*request_trace.hardness.items()][:MOST_ROWS]},
        "misses": [{"reason": str(miss.reason), "text": miss.detail[:LONGEST_TEXT]} for miss in request_trace.misses],
        **_end(request_trace),
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


def _decision(decision: Decision, arrived_s: float) -> dict[str, Any]:
    return {
        "plan": str(decision.plan),
        "reason": str(decision.reason),
        "quality": None if decision.quality is None else decision.quality.quality,
        "interface": decision.interface or None,
        "way": None if decision.split_route is None else decision.split_route.key[:LONGEST_ID],
        "obstacle": None if decision.obstacle is None else str(decision.obstacle),
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


def _end(request_trace: RequestTrace) -> dict[str, Any]:
    """The outcome, and how long after the deadline it came (negative: before)."""
    took_s = request_trace.ended_s - request_trace.signals.arrived_s
    end: dict[str, Any] = {
        "took_s": took_s,
        "edge_s": request_trace.edge_s,
        "uplink_s": request_trace.uplink_s,
        "link_wait": None if request_trace.link_wait is None else asdict(request_trace.link_wait),
        "late_s": request_trace.ended_s - request_trace.first.deadline_s,
    }
    if request_trace.answer is None:
        kind, text = request_trace.error
        return {**end, "answer": None, "error": {"type": kind, "text": text[:LONGEST_TEXT]}}
    answer = dict(zip(ANSWER_FIELDS, request_trace.answer, strict=True))
    timings = answer["timings"]
    end["answer"] = {
        **{name: str(answer[name]) for name in ("plan", "route", "reason")},
        "routes": [str(route) for route in answer["routes"][:MOST_ROWS]],
        "degraded": answer["degraded"],
        "total_s": timings.total_s,
        "edge_s": timings.edge_s,
        "uplink_s": timings.uplink_s,
        "cloud_queue_s": timings.cloud_queue_s,
        "cloud_compute_s": timings.cloud_compute_s,
        **{name: answer[name][:LONGEST_ID] for name in NAMES},
    }
    return {**end, "error": None}


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
