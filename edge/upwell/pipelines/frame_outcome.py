"""What a pipeline reports: each frame that is answered or dropped, and totals for all frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upwell.pipelines.events.event_rules import FiredEvent
from upwell.pipelines.frame import Scene
from upwell.pipelines.sources.base import SourceStatus


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of sorted numbers: the least that `share` of them do not exceed. None if there are
    none.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True)
class StepRun:
    """What one step did with a frame. `step` is its key in the file, followed by the model that it asks.

    `objects` is the number of objects after the step; `requests` are the ids of the requests that it made.
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
    """A frame without an answer. `reason` is the code it is counted under, `scene` what was known when it was dropped.

    `latency_s` is the time from capture to the drop. The last of `steps` dropped the frame or ended after the
    deadline.
    """

    scene: Scene
    reason: str
    text: str
    latency_s: float
    steps: Sequence[StepRun]


@dataclass(frozen=True)
class PipelineStatus:
    """The totals of a pipeline. `frames` maps `answered` and each reason for no answer to a number of frames, 0
    included. Their sum is `captured`, less a frame that is in the steps at this moment.

    `latencies_s` are the most recent times from capture to answer. `last_failure` says why the last unanswered frame
    had no answer.
    """

    name: str
    source: SourceStatus
    captured: int
    frames: Mapping[str, int]
    events: Mapping[str, int]
    latencies_s: Sequence[float]
    last_failure: str
