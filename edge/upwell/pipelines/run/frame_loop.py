"""One pipeline: passes frames of a source through the steps within the deadline. Every unanswered frame has a
reason.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType

from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.frame import Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame, PipelineStatus, StepRun
from upwell.pipelines.run.infer_step import FrameDropped, Step
from upwell.pipelines.sources.base import Source, SourceEnded
from upwell.pipelines.steps.geometry import Zones

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


class FrameLoop:
    """Frames of `source` through `steps`. Iterate over it in one thread; close it, or use it as a context manager.

    `deadline_s` counts from a frame's capture; infinite if only the models' policies have a deadline. `publish` gets
    each frame that went into the steps, an answered one before the iteration yields it. When the source ends, it gets
    the last frame once more, with the events that the end fires.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        steps: Sequence[Step],
        rules: EventRules,
        deadline_s: float = math.inf,
        publish: Callable[[AnsweredFrame | DroppedFrame], None] | None = None,
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
        scene = Scene(frame, frame.pixels)
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
        self._tell(self._last)
        self.source.done(frame)
        return self._last

    def _tell(self, answered: AnsweredFrame) -> None:
        with self._lock:
            self._events.update(one.event for one in answered.fired)
        if self._publish is not None:
            self._publish(answered)

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

    def __enter__(self) -> FrameLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
