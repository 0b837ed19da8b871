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


@dataclass(frozen=True, eq=False)
class AnsweredFrame:
    """A frame that went through all steps in time. `latency_s` counts from capture."""

    scene: Scene
    fired: Sequence[FiredEvent]
    latency_s: float


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
