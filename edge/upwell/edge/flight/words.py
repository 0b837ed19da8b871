"""A recorded flight in words: the signals, the rule, the decisions, the times predicted and actual, the reason."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from upwell.edge.flight.recorder import local_time
from upwell.shared.routing import reasons

Section = tuple[str, list[str]]
"""A heading and its lines."""


@cache
def meanings(kind: str) -> Mapping[str, str]:
    """Code -> its sentence, for the codes of the enumeration `kind` in `routing.reasons`.

    The sentences are the docstrings there, which Python keeps in the source alone. Without it a code stands for itself.
    """
    try:
        body = next(
            node.body
            for node in ast.parse(inspect.getsource(reasons)).body
            if isinstance(node, ast.ClassDef) and node.name == kind
        )
    except OSError:
        return {}
    found: dict[str, str] = {}
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(after, ast.Expr):
            text = after.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[str(node.value.value)] = " ".join(text.value.split())
    return found


def tell(flight: Mapping[str, Any]) -> list[Section]:
    """The flight for a person, in sections. Keys that are missing (of another version) are left out."""
    decisions = flight.get("decisions") or [{}]
    return [
        ("request", [*_request(flight)]),
        ("signals", [*_signals(flight)]),
        ("policy", [*_policy(flight.get("policy") or {})]),
        *(
            (title, [*_decision(decision)])
            for title, decision in zip(("decided on arrival", "decided after that"), decisions, strict=False)
        ),
        ("predicted and actual", [*_times(flight, decisions)]),
        ("outcome", [*_outcome(flight)]),
    ]


def outcome(flight: Mapping[str, Any]) -> tuple[str, str]:
    """Route and reason of an answer, or `error` and its type."""
    answer, error = flight.get("answer"), flight.get("error") or {}
    if answer:
        return str(answer.get("route", "")), str(answer.get("reason", ""))
    return "error", str(error.get("type", ""))


def ms(seconds: Any) -> str:
    """Milliseconds, or `unknown`."""
    return f"{seconds * 1e3:.1f} ms" if isinstance(seconds, (int, float)) else "unknown"


def _request(flight: Mapping[str, Any]) -> Iterator[str]:
    yield f"id {flight['id']}"
    yield f"at {local_time(flight['time'])}"
    sizes = flight.get("row_sizes_bytes") or []
    rows = flight.get("rows", len(sizes))
    shown = ", ".join(str(size) for size in sizes[:4]) + (", …" if rows > 4 else "")
    yield f"model {flight.get('model', '')}, {rows} row{'' if rows == 1 else 's'} of {shown} bytes"
    tags = flight.get("tags") or {}
    if tags:
        yield "tags " + ", ".join(f"{name}={value}" for name, value in tags.items())


def _signals(flight: Mapping[str, Any]) -> Iterator[str]:
    caller = flight.get("caller_deadline_s")
    yield f"deadline {ms(flight.get('deadline_s'))}" + ("" if caller is None else f", the caller's {ms(caller)}")
    yield f"runs ahead on the device: {flight.get('queue_ahead', 'unknown')}"
    link = flight.get("link") or {}
    if link.get("rtt_s") is None:
        yield "link unknown"
    else:
        up = link.get("up_bytes_per_s")
        speed = "" if up is None else f", up {up * 8 / 1e6:.2f} Mbps"
        yield f"link: round trip {ms(link['rtt_s'])}{speed}, last heard of {ms(link.get('age_s'))} before the end"
    for key in flight.get("breakers_open") or []:
        yield f"breaker open: {key or 'the whole service'}"
    for side, says in (("has_edge", "no edge side"), ("has_cloud", "no cloud"), ("has_scores", "no scores")):
        if flight.get(side) is False:
            yield says


def _policy(policy: Mapping[str, Any]) -> Iterator[str]:
    rule = policy.get("rule")
    yield (
        f"rule {rule!r}" + (f" (route: {policy['route']})" if policy.get("route") else "") if rule else "no rule set it"
    )
    if policy.get("egress_rule"):
        yield f"rule {policy['egress_rule']!r} denies egress"
    if policy.get("failed_rule"):
        yield f"rule {policy['failed_rule']!r} could not be evaluated"
    if policy.get("objective"):
        yield f"objective {policy['objective']}, confidence {policy.get('confidence', 0):.0%}"
    if policy.get("measure"):
        plain = "" if policy.get("calibrated", True) else " (not calibrated for these models)"
        yield f"hard by {policy['measure']}, threshold {policy.get('threshold'):.4g}{plain}"
    if policy.get("large_above_bytes") is not None:
        yield f"large above {policy['large_above_bytes']} bytes"
    if policy.get("priority") not in (None, "normal"):
        yield f"priority {policy['priority']}"
    if policy.get("digest"):
        yield f"digest {policy['digest']}"


def _decision(decision: Mapping[str, Any]) -> Iterator[str]:
    plan, reason = str(decision.get("plan", "")), str(decision.get("reason", ""))
    yield _meaning("plan", "Plan", plan)
    if decision.get("refusal"):
        yield f"refused: {decision['refusal']}"
        return
    if decision.get("up_rows"):
        by = f" by {decision['way']}" if decision.get("way") else ""
        until = ms(decision.get("give_up_s"))
        yield f"up for {reason}{by}: rows {_rows(decision['up_rows'])}, waited for until {until}"
    if decision.get("kept_rows"):
        yield f"kept on the device: rows {_rows(decision['kept_rows'])}, since {decision.get('obstacle')}"


def _rows(rows: list[int]) -> str:
    return ", ".join(str(row) for row in rows)


def _times(flight: Mapping[str, Any], decisions: list[Mapping[str, Any]]) -> Iterator[str]:
    answer = flight.get("answer") or {}
    edge, uplink = flight.get("edge_s"), flight.get("uplink_s", answer.get("uplink_s"))
    cloud = [one["predicted_cloud_s"] for one in decisions if one.get("predicted_cloud_s") is not None]
    yield f"device: predicted {ms(decisions[0].get('predicted_edge_s'))}, " + ("not run" if edge is None else ms(edge))
    yield f"cloud: predicted {ms(cloud[-1] if cloud else None)}, " + (
        "not waited for" if uplink is None else ms(uplink)
    )
    if answer.get("cloud_compute_s") is not None:
        yield f"of that in the cloud: {ms(answer.get('cloud_queue_s'))} queue, {ms(answer['cloud_compute_s'])} run"
    late_s = flight.get("late_s")
    when = "" if late_s is None else f", {ms(abs(late_s))} {'after' if late_s > 0 else 'before'} the deadline"
    yield f"whole request: {ms(flight.get('took_s'))}{when}"


def _outcome(flight: Mapping[str, Any]) -> Iterator[str]:
    for row, value in (flight.get("hardness") or {}).items():
        yield f"hardness of row {row}: " + ("not finite" if value is None else f"{value:.4g}")
    for miss in flight.get("misses") or []:
        yield f"the cloud: {miss.get('reason')}: {miss.get('text')}"
    answer, error = flight.get("answer"), flight.get("error")
    if error:
        yield f"error {error.get('type')}: {error.get('text')}"
    if not answer:
        return
    routes = answer.get("routes") or []
    yield f"answered by {answer.get('route')}" + (f" ({', '.join(routes)})" if len(set(routes)) > 1 else "")
    yield _meaning("reason", "Reason", str(answer.get("reason", "")))
    if answer.get("degraded"):
        yield "degraded"
    for name in ("edge_digest", "accelerator", "edge_state", "cloud_digest", "spool_id"):
        if answer.get(name):
            yield f"{name.replace('_', ' ')} {answer[name]}"


def _meaning(what: str, kind: str, code: str) -> str:
    meaning = meanings(kind).get(code)
    return f"{what} {code}" + (f": {meaning}" if meaning else "")
