"""The data of one pipeline's page: the newest answered frame and the pipeline's totals."""

from __future__ import annotations

import io
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from upwell.pipelines.frame import FoundObject, Point
from upwell.pipelines.frame_outcome import AnsweredFrame, PipelineStatus, percentile
from upwell.shared.tensors import Array

SHOWN_EVERY_S = 0.2
"""Minimum time between pictures shown, for any number of viewers. It limits the work of encoding."""

MAX_SIDE = 1280
"""Maximum side of a picture shown, in pixels; larger ones are shrunk (boxes are fractions)."""

MAX_OBJECTS = 100
"""Maximum number of objects shown per frame; further ones are only counted."""

MAX_TEXT = 200
"""Maximum length of a text shown, such as a label; longer ones are truncated."""

_QUALITY = 80
_MAX_DEPTH = 6


@dataclass
class _Shown:
    """A frame offered to viewers, and its picture once one of them has asked for it."""

    answered: AnsweredFrame
    since_s: float
    jpeg: bytes | None = None

    @property
    def number(self) -> int:
        return self.answered.scene.frame.number


class Preview:
    """Shows one pipeline to viewers, from any thread.

    It takes the pixels that may leave the process, blurred if a step blurs. A viewer asks for `document`, then for
    the `picture` of the frame that it names. Both are of one frame: the last two frames that were shown are kept
    beside the newest one.
    """

    def __init__(
        self,
        name: str,
        zones: Mapping[str, Sequence[Point]],
        lines: Mapping[str, tuple[Point, Point]],
        status: Callable[[], PipelineStatus],
    ) -> None:
        self.name = name
        self._zones = {zone: [list(point) for point in corners] for zone, corners in zones.items()}
        self._lines = {line: [list(point) for point in ends] for line, ends in lines.items()}
        self._status = status
        self._newest: AnsweredFrame | None = None
        self._shown: deque[_Shown] = deque(maxlen=2)
        self._lock = threading.Lock()

    def note(self, answered: AnsweredFrame) -> None:
        """Show this frame from now on. The pipeline pays no more than the storing of a reference."""
        self._newest = answered

    def document(self) -> dict[str, Any]:
        """The current state of the pipeline as bounded JSON: no NaN, no long text, no long list."""
        now_s = time.monotonic()
        with self._lock:
            shown = self._show(now_s)
        objects = () if shown is None else shown.answered.scene.objects
        status = self._status()
        dropped = {reason: count for reason, count in status.frames.items() if reason != "answered"}
        latencies_s = sorted(status.latencies_s)
        document = {
            "pipeline": self.name,
            "at_s": now_s,
            "frame": None if shown is None else _frame_facts(shown.answered, now_s),
            "objects": [_object_facts(one) for one in objects[:MAX_OBJECTS]],
            "objects_left_out": max(0, len(objects) - MAX_OBJECTS),
            "zones": self._zones,
            "lines": self._lines,
            "captured": status.captured,
            "answered": status.frames.get("answered", 0),
            "dropped": dropped,
            "events": status.events,
            "latency_ms": {
                "count": len(latencies_s),
                "p50": _milliseconds(percentile(latencies_s, 0.5)),
                "p99": _milliseconds(percentile(latencies_s, 0.99)),
            },
            "source": {
                "state": str(status.source.state),
                "explained": status.source.explained,
                "decoder": status.source.decoder,
                "width": status.source.width,
                "height": status.source.height,
                "reconnects": status.source.reconnects,
            },
            "last_failure": status.last_failure,
        }
        return {key: _plain(value) for key, value in document.items()}

    def picture(self, number: int | None = None) -> bytes | None:
        """The JPEG picture of frame `number`, or of the newest for None; None if there is none, or no longer."""
        with self._lock:  # other viewers wait for the picture that is being encoded
            shown = self._show(time.monotonic())
            if number is not None:
                shown = next((one for one in reversed(self._shown) if one.number == number), None)
            if shown is None:
                return None
            if shown.jpeg is None:
                shown.jpeg = _jpeg(shown.answered.scene.pixels)
            return shown.jpeg

    def _show(self, now_s: float) -> _Shown | None:
        newest, last = self._newest, self._shown[-1] if self._shown else None
        if newest is None or (last is not None and newest is last.answered):
            return last
        if last is None or now_s - last.since_s >= SHOWN_EVERY_S:
            self._shown.append(_Shown(newest, now_s))
        return self._shown[-1]


def _milliseconds(duration_s: float | None) -> float | None:
    return None if duration_s is None else round(1000 * duration_s, 1)


def _frame_facts(answered: AnsweredFrame, now_s: float) -> dict[str, Any]:
    scene = answered.scene
    height, width = scene.pixels.shape[:2]
    return {
        "number": scene.frame.number,
        "captured_unix_s": scene.frame.captured_unix_s,
        "age_s": round(max(0.0, now_s - scene.frame.captured_s), 3),
        "latency_ms": _milliseconds(answered.latency_s),
        "width": width,
        "height": height,
        "route": scene.route,
        "reason": scene.reason,
        "degraded": scene.degraded,
        "answers": scene.answers,
    }


def _object_facts(found: FoundObject) -> dict[str, Any]:
    return {
        "label": found.label,
        "score": found.score,
        "box": found.box,
        "track": found.track,
        "zones": sorted(found.zones),
        "answers": found.answers,
    }


def _plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """The value as JSON of a bounded size; numbers that are not finite become null."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(inner, depth - 1) for key, inner in list(value.items())[:MAX_OBJECTS]}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, depth - 1) for inner in value[:MAX_OBJECTS]]
    return _plain(str(value))


def _jpeg(pixels: Array) -> bytes:
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
