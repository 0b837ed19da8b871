"""A recorded trace in words.

Of a request: signals, rule, decisions, predicted and actual times, reason. Of a pipeline's frame: its steps, its
objects with the models' answers, its events.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from upwell.edge.observe.flight_recorder import local_time
from upwell.shared.routing import reasons
from upwell.shared.units import count_of

Section = tuple[str, list[str]]
"""A heading and its lines."""


@cache
def meanings(kind: str) -> Mapping[str, str]:
    """Map each code of the enumeration `kind` in `routing.reasons` to its sentence.

    The sentences are the docstrings there, which exist only in the source. Without the source, a code stands for
    itself.
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


def tell(request_trace: Mapping[str, Any]) -> list[Section]:
    """The trace for a person, in sections. Keys that are missing (of another version) are left out."""
    decisions = request_trace.get("decisions") or [{}]
    return [
        ("request", [*_request(request_trace)]),
        ("signals", [*_signals(request_trace)]),
        ("policy", [*_policy(request_trace.get("policy") or {})]),
        *(
            (title, [*_decision(decision)])
            for title, decision in zip(("decided on arrival", "decided after the edge run"), decisions, strict=False)
        ),
        ("predicted and actual", [*_times(request_trace, decisions)]),
        ("outcome", [*_outcome(request_trace)]),
    ]


_OPEN_KEYS = ("id", "time", "model", "policy", "decisions", "took_s", "edge_s", "late_s", "answer")
"""Keys of a request with denied egress that may leave the device: nothing written by its caller but the id."""


def tell_elsewhere(request_trace: Mapping[str, Any]) -> list[Section]:
    """The trace for use off the device: with denied egress, only how the request was decided."""
    if not (request_trace.get("policy") or {}).get("egress_rule"):
        return tell(request_trace)
    return tell({key: request_trace[key] for key in _OPEN_KEYS if key in request_trace})


def outcome(request_trace: Mapping[str, Any]) -> tuple[str, str]:
    """Route and reason of an answer, or `error` and its type."""
    answer, error = request_trace.get("answer"), request_trace.get("error") or {}
    if answer:
        return str(answer.get("route", "")), str(answer.get("reason", ""))
    return "error", str(error.get("type", ""))


def ms(seconds: Any) -> str:
    """Milliseconds, or `unknown`."""
    return f"{seconds * 1e3:.1f} ms" if isinstance(seconds, (int, float)) else "unknown"


def _request(request_trace: Mapping[str, Any]) -> Iterator[str]:
    yield f"id {request_trace['id']}"
    yield f"at {local_time(request_trace['time'])}"
    sizes = request_trace.get("row_sizes_bytes") or []
    rows = request_trace.get("rows", len(sizes))
    shown = _sizes(sizes, rows)
    yield f"model {request_trace.get('model', '')}, {count_of(rows, 'row')} of {shown} bytes"
    if request_trace.get("up_sizes_bytes"):
        shrunk = _sizes(request_trace["up_sizes_bytes"], rows)
        yield f"pictures shrunk to the size that the cloud's model uses: about {shrunk} bytes go up"
    tags = request_trace.get("tags") or {}
    if tags:
        yield "tags " + ", ".join(f"{name}={value}" for name, value in tags.items())


def _sizes(sizes: Sequence[int], rows: int) -> str:
    return ", ".join(str(size) for size in sizes[:4]) + (", …" if rows > 4 else "")


def _signals(request_trace: Mapping[str, Any]) -> Iterator[str]:
    caller = request_trace.get("caller_deadline_s")
    yield f"deadline {ms(request_trace.get('deadline_s'))}" + ("" if caller is None else f", the caller's {ms(caller)}")
    yield f"runs ahead in the device's queue: {request_trace.get('queue_ahead', 'unknown')}"
    link = request_trace.get("link") or {}
    if link.get("rtt_s") is None:
        yield "link unknown"
    else:
        up = link.get("up_bytes_per_s")
        speed = "" if up is None else f", up {up * 8 / 1e6:.2f} Mbps"
        yield f"link: round trip {ms(link['rtt_s'])}{speed}, last sample {ms(link.get('age_s'))} before the end"
    for key in request_trace.get("breakers_open") or []:
        yield f"breaker open: {key or 'the whole service'}"
    for side, says in (("has_edge", "no edge side"), ("has_cloud", "no cloud"), ("has_scores", "no scores")):
        if request_trace.get(side) is False:
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
        threshold = policy.get("threshold")  # null if the share wants none of the rows, or all
        at = f"{threshold:.4g}" if isinstance(threshold, (int, float)) else "beyond every score"
        yield f"hard by {policy['measure']}, threshold {at}{plain}"
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
    if decision.get("chance") is not None:
        yield reasons.chance_in_words(decision["chance"], decision["needed_chance"])
    if decision.get("up_rows"):
        by = f" by {decision['way']}" if decision.get("way") else ""
        by += f" over {decision['interface']}" if decision.get("interface") else ""
        until = ms(decision.get("give_up_s"))
        yield f"offloaded for {reason}{by}: rows {_rows(decision['up_rows'])}, waited for until {until}"
    if decision.get("quality"):
        yield f"pictures at quality {decision['quality']}, which the link carries in time"
    if decision.get("kept_rows"):
        yield f"kept on the device: rows {_rows(decision['kept_rows'])}, because of {decision.get('obstacle')}"


def _rows(rows: list[int]) -> str:
    return ", ".join(str(row) for row in rows)


def _times(request_trace: Mapping[str, Any], decisions: list[Mapping[str, Any]]) -> Iterator[str]:
    answer = request_trace.get("answer") or {}
    edge, uplink = request_trace.get("edge_s"), request_trace.get("uplink_s", answer.get("uplink_s"))
    cloud = [one["predicted_cloud_s"] for one in decisions if one.get("predicted_cloud_s") is not None]
    yield f"device: predicted {ms(decisions[0].get('predicted_edge_s'))}, " + ("not run" if edge is None else ms(edge))
    wait = request_trace.get("link_wait")
    if wait:
        behind = count_of(wait["messages"], "message")
        yield f"waited for the link: {ms(wait['wait_s'])}, behind {behind} of {wait['size_bytes']} bytes"
    yield f"cloud: predicted {ms(cloud[-1] if cloud else None)}, " + (
        "not waited for" if uplink is None else ms(uplink)
    )
    if answer.get("cloud_compute_s") is not None:
        yield f"of which in the cloud: {ms(answer.get('cloud_queue_s'))} queue, {ms(answer['cloud_compute_s'])} run"
    late_s = request_trace.get("late_s")
    when = "" if late_s is None else f", {ms(abs(late_s))} {'after' if late_s > 0 else 'before'} the deadline"
    yield f"whole request: {ms(request_trace.get('took_s'))}{when}"


def _outcome(request_trace: Mapping[str, Any]) -> Iterator[str]:
    for row, value in (request_trace.get("hardness") or {}).items():
        yield f"hardness of row {row}: " + ("not finite" if value is None else f"{value:.4g}")
    for miss in request_trace.get("misses") or []:
        yield f"the cloud: {miss.get('reason')}: {miss.get('text')}"
    answer, error = request_trace.get("answer"), request_trace.get("error")
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


def tell_frame(trace: Mapping[str, Any]) -> list[Section]:
    """The trace as readable sections. Missing keys (from another version) are left out."""
    sections = [
        ("frame", [*_frame(trace)]),
        ("steps", [*_steps(trace)]),
        ("objects", [*_objects(trace)]),
        ("events", [*_events(trace)]),
    ]
    return [(title, lines) for title, lines in sections if lines]


def _frame(trace: Mapping[str, Any]) -> Iterator[str]:
    about = f"amends {trace['amends']}" if trace.get("amends") else f"frame {trace.get('frame')}"
    yield f"id {trace['id']}: {about} of pipeline {trace.get('pipeline')}"
    yield f"captured at {local_time(trace['time'])}"
    text = trace.get("text")
    yield str(trace.get("outcome", "")) + (f": {text}" if text and text != trace.get("outcome") else "")
    took_s, deadline_s = trace.get("took_s"), trace.get("deadline_s")
    deadline = "" if deadline_s is None else f", deadline {ms(deadline_s)}"
    yield f"{ms(took_s)} from capture{deadline}"


def _steps(trace: Mapping[str, Any]) -> Iterator[str]:
    runs = trace.get("steps") or []
    if runs and isinstance(trace.get("took_s"), (int, float)):
        in_steps_s = sum(one.get("took_s") or 0.0 for one in runs)
        yield f"outside the steps: {ms(trace['took_s'] - in_steps_s)}"
    former = 0
    for one in runs:
        count = one.get("objects", former)
        changed = "" if count == former else f", {former} → {count} objects"
        requests = one.get("requests") or []
        asked = f", asked in {', '.join(requests)}" if requests else ""
        yield f"{one.get('step')}: {ms(one.get('took_s'))}{changed}{asked}"
        former = count


def _objects(trace: Mapping[str, Any]) -> Iterator[str]:
    asked = {request for one in trace.get("steps") or [] for request in one.get("requests") or []}
    for model, said in (trace.get("answers") or {}).items():
        yield f"whole frame: {_said(model, said, asked)}"
    found = trace.get("objects") or []
    for one in found:
        zones = one.get("zones") or []
        where = f", in {', '.join(zones)}" if zones else ""
        yield f"{_object(one)}, score {_number(one.get('score'))}{where}"
        for model, said in (one.get("answers") or {}).items():
            yield f"  {_said(model, said, asked)}"
    more = trace.get("objects_count", len(found)) - len(found)
    if more > 0:
        yield f"and {more} more"


def _said(model: str, said: Mapping[str, Any], asked: set[str]) -> str:
    label = f" {said['label']}, score {_number(said.get('score'))}," if said.get("label") else ""
    id = said.get("id")
    request = "" if id is None else f" (request {id}" + ("" if id in asked else ", of an earlier frame") + ")"
    case = f", to be answered by the cloud as case {said['case']}" if said.get("case") else ""
    return f"{model}:{label} by {said.get('route')}, {said.get('reason')}{request}{case}"


def _events(trace: Mapping[str, Any]) -> Iterator[str]:
    for event in trace.get("events") or []:
        about = "; ".join(_object(one) for one in event.get("objects") or [])
        yield f"{event.get('event')} {event.get('id')}, number {event.get('sequence')}" + (
            f": {about}" if about else ""
        )


def _object(one: Mapping[str, Any]) -> str:
    return f"{one.get('label')}" + ("" if one.get("track") is None else f", track {one['track']}")


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) else "unknown"
