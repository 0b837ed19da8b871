"""Frames that are drawn, with what a pipeline would have found on them, and how such a pipeline does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from upwell.pipelines.frame import Box, FoundObject, Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, PipelineStatus
from upwell.pipelines.preview.preview import Preview
from upwell.pipelines.sources.base import SourceState, SourceStatus
from upwell.shared.tensors import Array

SIZE = (320, 240)
"""Width and height of a frame, in pixels."""

ZONES = {"door": [(0.05, 0.1), (0.4, 0.1), (0.4, 0.9), (0.05, 0.9)]}
LINES = {"gate": ((0.0, 0.75), (1.0, 0.75))}


def picture(boxes: Sequence[Box], ground: tuple[int, int, int] = (70, 82, 96)) -> Array:
    """Filled boxes on a plain ground."""
    image = Image.new("RGB", SIZE, ground)
    draw = ImageDraw.Draw(image)
    for x1, y1, x2, y2 in boxes:
        draw.rectangle((x1 * SIZE[0], y1 * SIZE[1], x2 * SIZE[0], y2 * SIZE[1]), fill=(205, 120, 60))
    return np.asarray(image)


def person(box: Box, track: int, **facts: Any) -> FoundObject:
    """A person in the zone, with an answer about the helmet."""
    answers = {"helmet": {"label": "none", "score": 0.881, "route": "cloud", "reason": "low_confidence", **facts}}
    return FoundObject("person", 0.912, box, track, frozenset({"door"}), answers)


def answered(
    number: int, objects: Sequence[FoundObject] = (), pixels: Array | None = None, captured_s: float | None = None
) -> AnsweredFrame:
    """A frame that took 41 ms, captured just now unless you say when."""
    drawn = picture([one.box for one in objects])
    frame = Frame(
        number, time.monotonic() if captured_s is None else captured_s, 1_700_000_000.0 + number, drawn, drawn[..., 1]
    )
    shown = drawn if pixels is None else pixels
    return AnsweredFrame(Scene(frame, shown, tuple(objects), {}, "edge", "confident"), (), 0.041)


class FakePipeline:
    """Its status can be set; `preview` shows it."""

    def __init__(self, name: str = "dock", zones: Mapping[str, Any] = ZONES, lines: Mapping[str, Any] = LINES) -> None:
        source = SourceStatus(SourceState.LIVE, decoder="h264", width=SIZE[0], height=SIZE[1], given=100)
        frames = {"answered": 90, "unchanged": 7, "late": 3, "superseded": 0}
        latencies_s = [index / 1000 for index in range(1, 101)]
        self.status = PipelineStatus(name, source, 100, frames, {"no-helmet": 2}, latencies_s, "late: the time was up")
        self.preview = Preview(name, zones, lines, lambda: self.status)

    def source(self, **changes: Any) -> None:
        """Set facts of the source's status."""
        self.status = replace(self.status, source=replace(self.status.source, **changes))

    def count(self, **frames: int) -> None:
        """Set how many frames had which fate."""
        new = {**self.status.frames, **frames}
        self.status = replace(self.status, frames=new, captured=sum(new.values()))
