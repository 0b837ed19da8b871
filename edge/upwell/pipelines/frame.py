"""A frame of a source, and what a pipeline has found in it."""

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
    """One picture of a source, or one window of a series. Immutable.

    `pixels` are uint8 [height, width, 3] RGB, `luma` uint8 [height, width]. If only a model sees the pixels, they may
    already have its size while the luma has the picture's. `number` counts what the source captured, so it has gaps
    where newer frames replaced older ones. `captured_s` is an instant of the monotonic clock. `path` is the file of a
    picture that has its own. `media_s` is the time within a file that has one, which never runs backwards and may be
    read at another speed than it was recorded.

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
        """The time of the frame by a clock of its source, in seconds; what takes time to happen is measured by it."""
        return self.captured_s if self.media_s is None else self.media_s

    @classmethod
    def of_window(
        cls, number: int, captured: tuple[float, float], window: Array, missing: int, media_s: float | None = None
    ) -> Frame:
        """A frame without a picture. `captured` is the capture time by the monotonic clock and in seconds since
        1970.
        """
        empty = NO_PIXELS[:, :, 0]
        return cls(number, *captured, NO_PIXELS, empty, window=window, missing=missing, media_s=media_s)


@dataclass(frozen=True)
class FoundObject:
    """One object of a frame.

    `zones` are the zones that it is in. `answers` maps a model to its answer about the crop, as events write it.
    """

    label: str
    score: float
    box: Box
    track: int | None = None
    zones: frozenset[str] = frozenset()
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scene:
    """A frame on its way through the steps. `pixels` are those that may leave the process: the frame's or blurred
    ones.

    `answers` maps a model to its answer about the whole frame, unless that is a list of objects. `route`, `reason`
    and `degraded` are those of the last answer about the frame; empty before the first one. `requests` are the ids of
    the requests to the agent about it, in order. `untracked` are objects that the tracker left out, mostly since it
    sees them for the first time: nothing is said of them, but they may have to be hidden. `last_answered` is the number
    of the last frame of the pipeline that was answered, 0 before the first one.
    """

    frame: Frame
    pixels: Array
    objects: tuple[FoundObject, ...] = ()
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    route: str = ""
    reason: str = ""
    degraded: bool = False
    requests: tuple[str, ...] = ()
    untracked: tuple[FoundObject, ...] = ()
    last_answered: int = 0
