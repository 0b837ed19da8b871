"""What a pipeline tells of its frames: one that is answered, and how all of them do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upwell.pipelines.events.rules import FiredEvent
from upwell.pipelines.frame import Scene
from upwell.pipelines.sources.base import SourceStatus


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of numbers in order: the least that `share` of them do not exceed; None of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True)
class StepRun:
    """What one step did with a frame. `step` is its key in the file, and the model that it asks.

    `objects` is how many the frame had after it; `requests` are the ids of those that it made.
    """

    step: str
    took_s: float
    objects: int
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AnsweredFrame:
    """A frame that went through all steps in time. `latency_s` counts from capture."""

    scene: Scene
    fired: Sequence[FiredEvent]
    latency_s: float
    steps: Sequence[StepRun] = ()


@dataclass(frozen=True, eq=False)
class DroppedFrame:
    """A frame without an answer, for the `reason` that is counted. `scene` is what was known until then.

    `latency_s` is from capture until it was dropped; the last of `steps` dropped it, or ended after the deadline.
    """

    scene: Scene
    reason: str
    text: str
    latency_s: float
    steps: Sequence[StepRun]


@dataclass(frozen=True)
class PipelineStatus:
    """How a pipeline does. `frames` has the number of frames by what became of them, `answered` and each reason for
    no answer, also where that is 0. Their sum is `captured`, but for a frame that is among the steps at this moment.

    `latencies_s` are the latest times from capture to answer. `last_failure` says why a frame last had no answer.
    """

    name: str
    source: SourceStatus
    captured: int
    frames: Mapping[str, int]
    events: Mapping[str, int]
    latencies_s: Sequence[float]
    last_failure: str
