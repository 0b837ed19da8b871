"""One pipeline: passes frames of a source through the steps within the deadline, and records what it did with each.

Every unanswered frame has a reason. The records are for the flight recorder and `upwell explain`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from upwell.edge.observe.flight_recorder import FlightRecorder
from upwell.edge.observe.request_trace import LONGEST_ID, LONGEST_TEXT, json_line
from upwell.pipelines.events.event_rules import Event, EventRules
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame, PipelineStatus, StepRun
from upwell.pipelines.run.infer_step import FrameDropped, Step
from upwell.pipelines.sources.base import Source, SourceEnded
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.platform.closing import Closing

REASONS = ("superseded", "undecodable", "gap", "source_lost", "unchanged", "late", "refused", "denied", "failed")
"""Why a frame has no answer: a newer one replaced it, it cannot be decoded, a part of a window is missing, the source
was lost or closed, nothing had changed, the deadline had passed, the agent was overloaded, no route was allowed, a
model failed.
"""

_LOOK_S = 0.2
_LATENCIES = 512
_SAY_EVERY_S = 60.0
_NO_REQUESTS: tuple[str, ...] = ()
_log = logging.getLogger(__name__)


class FrameLoop(Closing):
    """Frames of `source` through `steps`. Iterate over it in one thread; close it, or use it as a context manager.

    `deadline_s` counts from a frame's capture; infinite if only the models' policies have a deadline. `publish` gets
    each frame that went into the steps, an answered one before the iteration yields it. It returns False if the
    frame's events cannot be stored: the source then keeps the frame, if it can. When the source ends, it gets the last
    frame once more, with the events that the end fires.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        steps: Sequence[Step],
        rules: EventRules,
        deadline_s: float = math.inf,
        publish: Callable[[AnsweredFrame | DroppedFrame], bool | None] | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.steps = tuple(steps)
        self._rules = rules
        self._deadline_s = deadline_s
        self._publish = publish
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._frames: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._latencies_s: deque[float] = deque(maxlen=_LATENCIES)
        self._last_failure = ""
        self._last: AnsweredFrame | None = None
        self._said_s: dict[str, float] = {}

    def __iter__(self) -> Iterator[AnsweredFrame]:
        """Each answered frame, until the source ends or the pipeline is stopped."""
        while not self._stop.is_set():
            try:
                frame = self.source.next(_LOOK_S)
            except SourceEnded:
                last = self._last
                if last is not None:
                    self._tell(replace(last, fired=self._rules.end(last.scene.frame.at_s)))
                return
            if frame is None:
                continue
            answered = self._answer(frame)
            if answered is not None:
                yield answered

    def _answer(self, frame: Frame) -> AnsweredFrame | None:
        until_s = frame.captured_s + self._deadline_s
        last = self._last
        scene = Scene(frame, frame.pixels, last_answered=0 if last is None else last.scene.frame.number)
        runs: list[StepRun] = []
        try:
            for step in self.steps:
                scene = _taken(step, scene, until_s, runs)
            latency_s = time.monotonic() - frame.captured_s
            if latency_s > self._deadline_s:
                raise FrameDropped("late")
        except FrameDropped as dropped:
            self._drop(dropped, scene, runs)
            if dropped.reason == "unchanged":  # needs no answer; others get one, after the next start at the latest
                self.source.done(frame)
            return None
        except BaseException:  # a defect, reported by the caller; the totals must still agree
            self._drop(FrameDropped("failed", "a step failed"), scene, runs)
            raise
        with self._lock:
            self._frames["answered"] += 1
            self._latencies_s.append(latency_s)
        self._last = AnsweredFrame(scene, self._rules.take(scene), latency_s, runs)
        if self._tell(self._last):
            self.source.done(frame)
        return self._last

    def _tell(self, answered: AnsweredFrame) -> bool:
        """Publish the frame; whether its events are stored."""
        with self._lock:
            self._events.update(one.event for one in answered.fired)
        return self._publish is None or self._publish(answered) is not False

    def _drop(self, dropped: FrameDropped, scene: Scene, runs: Sequence[StepRun]) -> None:
        self._count(dropped)
        if self._publish is not None:
            latency_s = time.monotonic() - scene.frame.captured_s
            self._publish(DroppedFrame(scene, dropped.reason, str(dropped), latency_s, runs))

    def _count(self, dropped: FrameDropped) -> None:
        with self._lock:
            self._frames[dropped.reason] += 1
            if dropped.reason == "unchanged":
                return
            self._last_failure = f"{dropped.reason}: {dropped}" if str(dropped) != dropped.reason else dropped.reason
            now_s = time.monotonic()
            if now_s - self._said_s.get(dropped.reason, -math.inf) < _SAY_EVERY_S:
                return
            self._said_s[dropped.reason] = now_s
        _log.warning("pipeline %s: a frame has no answer: %s", self.name, self._last_failure)

    @property
    def zones(self) -> Zones:
        """The zones and lines that its events use."""
        return self._rules.zones

    @property
    def status(self) -> PipelineStatus:
        """The totals so far, without the frame in progress. Safe to read from any thread."""
        source = self.source.status
        with self._lock:
            frames = {"answered": 0, **dict.fromkeys(REASONS, 0), **self._frames}
            frames |= {
                "superseded": source.superseded,
                "undecodable": source.undecodable,
                "gap": source.gap,
                "source_lost": source.source_lost,
            }
            return PipelineStatus(
                self.name, source, sum(frames.values()), frames, dict(self._events), tuple(self._latencies_s),
                self._last_failure,
            )  # fmt: skip

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End the iteration after the frame in progress. From any thread."""
        self._stop.set()

    def close(self) -> None:
        """Stop, and release what the source holds. Calling it twice is harmless."""
        self.stop()
        self.source.close()


def _taken(step: Step, scene: Scene, until_s: float, runs: list[StepRun]) -> Scene:
    """The scene after the step. `runs` gets a record of the step, also if it drops the frame."""
    began_s, after, requests = time.monotonic(), scene, _NO_REQUESTS
    try:
        after = step.take(scene, until_s)
        requests = after.requests[len(scene.requests) :]
    except FrameDropped as dropped:
        requests = (dropped.request,) if dropped.request else ()
        raise
    finally:
        runs.append(StepRun(step.name, time.monotonic() - began_s, len(after.objects), requests))
    return after


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
