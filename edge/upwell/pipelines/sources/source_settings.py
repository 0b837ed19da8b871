"""The settings of each kind of source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from upwell.pipelines.sources.windows import WindowShape
from upwell.shared.config.security import TlsFiles

Keep: TypeAlias = Literal["latest", "all"]
"""`latest`: a newer frame replaces a waiting one. `all`: no frame is replaced; the source waits."""

DEFAULT_MAX_PIXELS = 64_000_000
"""Maximum size of a picture; larger ones are refused before memory is allocated."""

_REMOTE = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True)
class Patience:
    """How long a live source may deliver nothing, and when it is tried again.

    It is lost if all frames have been equal for `silent_s`, or if a new connection delivers no frame within `open_s`.
    Pauses double from `first_pause_s` to `longest_pause_s`, each shortened by up to half at random, so that many
    cameras behind one switch do not come back at the same instant.

    An attempt that hangs must not keep a source away that is back, and a slow one must not be given up. So if a
    connection has delivered nothing for `rival_s`, another one is tried beside it for as long, again and again, and
    replaces it with its first frame. A broker has `rival_s` to answer. A source is therefore back within the longer
    of `longest_pause_s` and `rival_s`, plus the time to connect.
    """

    silent_s: float = 10.0
    open_s: float = 10.0
    rival_s: float = 2.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 4.0


@dataclass(frozen=True)
class VideoSettings:
    """A stream or a file that PyAV opens: `rtsp://`, `http://` and other addresses are live, the rest are files.

    `fps` is the maximum rate of frames passed on per second, 0 for all; frames that it leaves out do not count as
    captured. `keep` is None for the default: `latest` for a live source, `all` for a file. `decoder` selects one by
    its name in FFmpeg, such as `h264_v4l2m2m`, or by its suffix, `v4l2m2m`. If that one cannot be used, the usual one
    is, and the status says which. With a space in it, it is a GStreamer command line that opens `{address}` and ends
    with raw video. `patience` is for live sources: files are not retried.
    """

    address: str
    fps: float = 0.0
    keep: Keep | None = None
    decoder: str = ""
    max_pixels: int = DEFAULT_MAX_PIXELS
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class CameraSettings:
    """A Video4Linux camera. `fps` also requests a rate."""

    device: str = "/dev/video0"
    fps: float = 0.0
    keep: Keep = "latest"
    decoder: str = ""
    max_pixels: int = DEFAULT_MAX_PIXELS
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class FolderSettings:
    """A folder of JPEG, PNG and WebP pictures, read in the order of their names, at most `fps` per second (0: all).

    With `keep: all` no picture is left out; with `latest` only the last one of those that are there is read.

    `answered` says what happens to a file once its frame is done: it is moved to `<path>/done`, or left, and read again
    after a restart. Unreadable files are moved to `<path>/failed`. With `watch` the source waits for new files;
    without it, it ends with the last one. A file is read once its size and time have not changed for `settle_s`, and
    once more after ten seconds if it cannot be decoded by then.
    """

    path: Path
    watch: bool = True
    answered: Literal["move", "leave"] = "move"
    settle_s: float = 0.5
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_bytes: int = 256 << 20
    fps: float = 0.0
    keep: Keep = "all"


@dataclass(frozen=True)
class MqttTopicSettings:
    """A `topic` of the broker `mqtt://HOST[:PORT]`, or `mqtts://` with `tls`.

    The file at `password_file` holds the password and nothing else. A message of more than `max_bytes` is
    undecodable; the broker drops most of them.
    """

    broker: str
    topic: str
    tls: TlsFiles = field(default_factory=TlsFiles)
    user: str | None = None
    password_file: Path | None = None
    keep: Keep = "latest"
    max_bytes: int = 16 << 20
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class MqttPicturesSettings(MqttTopicSettings):
    """Pictures as JPEG, PNG or WebP, one per message. `fps` is as for `VideoSettings`.

    A picture of more than `max_pixels` is undecodable.
    """

    fps: float = 0.0
    max_pixels: int = DEFAULT_MAX_PIXELS


@dataclass(frozen=True)
class SeriesShape:
    """Which numbers of a sample are taken, and how windows are cut from them.

    A sample is a JSON object or a CSV row. `time` names its time stamp, a number in units of `unit_s` seconds or an
    ISO 8601 text, and `fields` its numbers; `a.b` is `b` within `a`. With `fills` a window with a gap is given with
    NaN in the gap; without it such a window is left out and counted.
    """

    fields: tuple[str, ...]
    cut: WindowShape
    time: str = "time"
    unit_s: float = 1.0
    fills: bool = False


@dataclass(frozen=True)
class SeriesFileSettings:
    """A file of samples in order: CSV with a header row, or JSON with one object per line (`.jsonl`, `.ndjson`)."""

    path: Path
    shape: SeriesShape
    max_line_bytes: int = 1 << 20


@dataclass(frozen=True)
class SeriesTopicSettings:
    """An MQTT topic; each message is a sample or a list of samples, as JSON."""

    topic: MqttTopicSettings
    shape: SeriesShape


@dataclass(frozen=True)
class CustomSettings:
    """A custom source: the name of an entry point of the group `upwell.sources`, and its options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


SourceSettings: TypeAlias = (
    VideoSettings
    | CameraSettings
    | FolderSettings
    | MqttPicturesSettings
    | SeriesFileSettings
    | SeriesTopicSettings
    | CustomSettings
)


def is_live(address: str) -> bool:
    """Whether an address names a stream, which has no end of its own, rather than a file."""
    found = _REMOTE.fullmatch(address)
    return found is not None and found["scheme"].lower() != "file"


def shown_address(address: str) -> str:
    """The address without what may be secret: everything before the last `@`, the values of the query, the fragment.

    A password with an unquoted `/` must not be taken for a path, so an `@` in a path also hides the host before it.
    With a `?` before the last `@`, nothing tells a password from a query, so all of it is hidden.
    """
    found = _REMOTE.fullmatch(address)
    if found is None:
        return address
    hidden, _, rest = found["rest"].rpartition("@")
    if "?" in hidden:
        return f"{found['scheme']}://…"
    place, _, query = rest.partition("#")[0].partition("?")
    # A word without a value may itself be the secret, and end in = if it is base64.
    keys = [key if value.strip("=") else "…" for key, _, value in (one.partition("=") for one in query.split("&"))]
    values = "&".join(f"{key}=…" if key != "…" else key for key in keys)
    return f"{found['scheme']}://{place}" + (f"?{values}" if query else "")
