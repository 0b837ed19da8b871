"""A pipeline frame's trace in words: its steps, its objects with the models' answers, its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from upwell.edge.observe.flight_recorder.recorder import local_time
from upwell.edge.observe.flight_recorder.words import Section, ms


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
