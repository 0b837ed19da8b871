"""Records what a pipeline did with its frames, for the flight recorder and `upwell explain`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from upwell.edge.observe.flight_recorder.recorder import FlightRecorder
from upwell.edge.observe.flight_recorder.request_trace import LONGEST_ID, LONGEST_TEXT, json_line
from upwell.pipelines.events.event import Event
from upwell.pipelines.frame import FoundObject
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame

MOST_OBJECTS = 16
"""Maximum number of objects recorded per frame; for more, their count is recorded as well."""

PAUSE_S = 10.0
"""Of frames without an event, one per outcome is recorded in this time, so that events stay longer in the bounded
log.
"""

_SAID = ("label", "score", "route", "reason", "id", "case")
"""The recorded fields of a model's answer. No tensors, as for requests."""


class FrameNotes:
    """Records frames of one pipeline, in the pipeline's thread: each with an event, and some of the others.

    An amendment is recorded as a frame without a number, which says what it `amends`.
    """

    def __init__(self, pipeline: str, deadline_s: float, recorder: FlightRecorder) -> None:
        self._pipeline = pipeline
        self._deadline_s = deadline_s
        self._recorder = recorder
        self._noted_s: dict[str, float] = {}

    def note(self, frame: AnsweredFrame | DroppedFrame, events: Sequence[Event]) -> None:
        """Record the frame and its outcome. `events` are as stored in the outbox."""
        outcome = "answered" if isinstance(frame, AnsweredFrame) else frame.reason
        now_s = frame.scene.frame.captured_s
        if not events and now_s - self._noted_s.get(outcome, -math.inf) < PAUSE_S:
            return
        self._noted_s[outcome] = now_s
        self._recorder.note(json_line(self._record(frame, outcome, events)))

    def note_amendment(self, event: Event) -> None:
        """Record the cloud's late answer about an event. From any thread."""
        self._recorder.note(
            json_line(
                {
                    "id": event.id,
                    "time": event.captured_unix_s,
                    "pipeline": self._pipeline,
                    "frame": None,
                    "amends": event.amends,
                    "outcome": "amended",
                    "took_s": event.latency_ms / 1e3,
                    "steps": [],
                    "answers": {model: _said(facts) for model, facts in event.answers.items()},
                    "objects_count": len(event.objects),
                    "objects": [_object(found) for found in event.objects[:MOST_OBJECTS]],
                    "events": [_event(event)],
                }
            )
        )

    def _record(self, frame: AnsweredFrame | DroppedFrame, outcome: str, events: Sequence[Event]) -> dict[str, Any]:
        """The frame as an object for JSON; durations in seconds."""
        scene = frame.scene
        return {
            "id": f"{self._pipeline}/{scene.frame.number}"[:LONGEST_ID],
            "time": scene.frame.captured_unix_s,
            "pipeline": self._pipeline,
            "frame": scene.frame.number,
            "outcome": outcome,
            "text": frame.text[:LONGEST_TEXT] if isinstance(frame, DroppedFrame) else "",
            "deadline_s": self._deadline_s,
            "took_s": frame.latency_s,
            "steps": [
                {"step": one.step, "took_s": one.took_s, "objects": one.objects, "requests": list(one.requests)}
                for one in frame.steps
            ],
            "answers": {model: _said(facts) for model, facts in scene.answers.items()},
            "objects_count": len(scene.objects),
            "objects": [_object(found) for found in scene.objects[:MOST_OBJECTS]],
            "events": [_event(event) for event in events],
        }


def _event(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "event": event.event,
        "sequence": event.sequence,
        "objects": [{"label": one.label, "track": one.track} for one in event.objects[:MOST_OBJECTS]],
    }


def _object(found: FoundObject) -> dict[str, Any]:
    return {
        "label": found.label,
        "score": float(found.score),
        "track": found.track,
        "zones": sorted(found.zones),
        "answers": {model: _said(facts) for model, facts in found.answers.items()},
    }


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in _SAID if name in facts}
