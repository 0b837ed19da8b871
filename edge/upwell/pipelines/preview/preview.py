"""The preview of pipelines: the newest answered frame and totals of each, and the pages beside the metrics."""

from __future__ import annotations

import io
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image

from upwell.pipelines.frame import FoundObject, Point
from upwell.pipelines.frame_outcome import AnsweredFrame, PipelineStatus, percentile
from upwell.shared.config.addresses import parse_address
from upwell.shared.errors import ConfigError
from upwell.shared.telemetry.page_server import Page, PageReply, PageRequest
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


_FILES: Mapping[str, tuple[str, str]] = {
    "": ("index.html", "text/html; charset=utf-8"),
    "app.js": ("app.js", "text/javascript; charset=utf-8"),
    "picture.js": ("picture.js", "text/javascript; charset=utf-8"),
    "figures.js": ("figures.js", "text/javascript; charset=utf-8"),
    "drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Maps paths below /preview/ to files of this package and their content types."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: no other origins, nothing inline, no framing. Text of a model or file cannot become HTML."""

_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TEXT = "text/plain; charset=utf-8"


def preview_pages(previews: Mapping[str, Preview]) -> Mapping[str, Page]:
    """The pages for `serve_pages`. `previews` is read again for each reply, so pipelines may come and go.

    `/preview` is the page, `/preview.json` the names of the pipelines, `/preview/NAME.json` the document of one, and
    `/preview/NAME.jpg?frame=NUMBER` its picture, that of the newest frame without a number.
    """
    folder = files("upwell.pipelines.preview") / "page"
    static = {path: _reply((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    def below(request: PageRequest) -> PageReply:
        path = request.path.removeprefix("/preview").removeprefix("/")
        if path in static:
            return static[path]
        name, _, kind = path.rpartition(".")
        preview = previews.get(name)
        if preview is not None and kind == "json":
            return _reply(json.dumps(preview.document(), allow_nan=False).encode("ascii"))
        if preview is not None and kind == "jpg":
            number = request.query.get("frame", "")
            is_number = number.isascii() and number.isdigit() and len(number) < 20
            picture = preview.picture(int(number) if is_number else None)
            if picture is not None:
                return _reply(picture, "image/jpeg")
        return _reply(b"not here, or not any more\n", _TEXT, 404)

    def names(_: PageRequest) -> PageReply:
        return _reply(json.dumps({"pipelines": list(previews)}).encode("ascii"))

    return {"/preview/": _for_this_machine(below), "/preview.json": _for_this_machine(names)}


def check_preview_address(address: str | None, key: str) -> None:
    """Refuse to show pictures to a network. `address` is that of the metrics, `key` the key that asks for the preview.

    Raises `ConfigError` if there is no address, or if other machines can reach it: the pages have no authentication.
    """
    if address is None:
        raise ConfigError.at(None, "the preview is served beside the metrics: set `agent.metrics` to an address", key)
    if not parse_address(address).is_loopback:
        raise ConfigError.at(
            None,
            f"{address} can be reached from outside this machine, where anyone could see the pictures: set "
            "`agent.metrics` to an address such as 127.0.0.1:9464, or leave `preview` out",
            key,
        )


def _for_this_machine(page: Page) -> Page:
    """Serve the page only to requests whose Host is a local name; another name may belong to a web site that points
    here.

    Otherwise a web page could read the pictures in a user's browser by DNS rebinding.
    """

    def answer(request: PageRequest) -> PageReply:
        try:
            address = parse_address(_with_port(request.host))
            is_own = address.is_loopback and address.socket_path is None
        except ConfigError:
            is_own = False
        return page(request) if is_own else _reply(b"the preview is for 127.0.0.1 and localhost\n", _TEXT, 403)

    return answer


def _with_port(host: str) -> str:
    return host if host.rpartition("]")[2].rpartition(":")[1] else f"{host}:80"


def _reply(body: bytes, content_type: str = "application/json; charset=utf-8", status: int = 200) -> PageReply:
    return PageReply(body, content_type, status, _HEADERS)
