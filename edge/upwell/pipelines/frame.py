"""A frame of a source, and what a pipeline has found on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from upwell.shared.tensors import Array

Box: TypeAlias = tuple[float, float, float, float]
"""x1, y1, x2, y2 as fractions of the picture's width and height, from its top left."""

Point: TypeAlias = tuple[float, float]
"""x, y as fractions of the picture's width and height, from its top left."""


NO_PIXELS: Array = np.zeros((0, 0, 3), np.uint8)


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a source, or one window of a series, which nobody changes.

    `pixels` are uint8 [height, width, 3] RGB, `luma` uint8 [height, width]; where nobody but a model sees the pixels,
    they may have its size already, and the luma the picture's. `number` counts what the source captured,
    so that it has gaps where frames were replaced by newer ones. `captured_s` is an instant of the monotonic clock.
    `path` is the file that it came from, where each picture is a file of its own. `media_s` is its time in a file that
    has one, which is read faster or more slowly than it was recorded.

    A window is float64 [size, fields], of which `missing` points lie in a gap and are NaN; its pixels are empty.
    """

    number: int
    captured_s: float
    captured_unix_s: float
    pixels: Array
    luma: Array
    path: Path | None = None
    window: Array | None = None
    missing: int = 0
    media_s: float | None = None

    @property
    def at_s(self) -> float:
        """When it was, for whatever takes time to happen on frames: seconds of a clock of its source."""
        return self.captured_s if self.media_s is None else self.media_s

    @classmethod
    def of_window(
        cls, number: int, captured: tuple[float, float], window: Array, missing: int, media_s: float | None = None
    ) -> Frame:
        """A frame without a picture; `captured` is by the monotonic clock and in seconds since 1970."""
        empty = NO_PIXELS[:, :, 0]
        return cls(number, *captured, NO_PIXELS, empty, window=window, missing=missing, media_s=media_s)


@dataclass(frozen=True)
class FoundObject:
    """One object of a frame.

    `zones` are the zones that it is in. `answers` has, by model, what was said about its crop, as events write it.
    """

    label: str
    score: float
    box: Box
    track: int | None = None
    zones: frozenset[str] = frozenset()
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scene:
    """A frame on its way through the steps. `pixels` are those that may leave the process: the frame's, or blurred.

    `answers` has, by model, what was said about the whole frame where that is no list of objects. `route`, `reason`
    and `degraded` are those of the last answer about the frame; empty before there is one. `requests` are the ids of
    what the agent was asked about it, in order.
    """

    frame: Frame
    pixels: Array
    objects: tuple[FoundObject, ...] = ()
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    route: str = ""
    reason: str = ""
    degraded: bool = False
    requests: tuple[str, ...] = ()
