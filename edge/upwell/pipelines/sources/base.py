"""One interface for whatever brings frames, and what a person sets for each kind of source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.windows import WindowShape
from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import UpwellError

Keep: TypeAlias = Literal["latest", "all"]
"""`latest`: a newer frame replaces a waiting one. `all`: no frame is replaced; the source waits."""

DEFAULT_MAX_PIXELS = 64_000_000
"""Maximum size of a picture; larger ones are refused before memory is allocated."""

_REMOTE = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


class SourceEnded(UpwellError):
    """No frame will come any more: the file or the folder is over, or the source was closed."""


class SourceState(str, Enum):
    """How it stands with a source."""

    CONNECTING = "connecting"
    """Opened, but no frame yet."""
    LIVE = "live"
    """Delivering frames."""
    LOST = "lost"
    """Not delivering; retried indefinitely."""
    ENDED = "ended"
    """Ended or closed."""

    def __str__(self) -> str:
        """The state as it stands in logs and metrics."""
        return str(self.value)


@dataclass(frozen=True)
class SourceStatus:
    """What a source is doing, and what became of every frame of it.

    `explained` says why it is lost, without credentials; else it is empty. `decoder` is the one really used, such as
    `h264`, `h264_v4l2m2m` or `folder`; empty before the first connection. `width` and `height` are those of the last
    picture in pixels, 0 before there is one. `reconnects` counts the times it was lost and tried again.

    Every captured frame has one fate: captured = given + superseded + undecodable + gap + source_lost, where `given`
    are those that `next` returned. `gap` are windows of a series that were left out, as a part of them is missing.
    `source_lost` are frames that were captured and never given, because the source was lost or closed first. A frame
    that waits to be given is captured once its fate is known.
    """

    state: SourceState
    explained: str = ""
    decoder: str = ""
    width: int = 0
    height: int = 0
    given: int = 0
    superseded: int = 0
    undecodable: int = 0
    gap: int = 0
    source_lost: int = 0
    reconnects: int = 0

    @property
    def captured(self) -> int:
        """How many frames there were."""
        return self.given + self.superseded + self.undecodable + self.gap + self.source_lost


class Source(Protocol):
    """Something that brings frames. `next` and `done` are one thread's; any thread may ask for `status` or close it."""

    def next(self, timeout_s: float) -> Frame | None:
        """The next frame, the newest or in order as the source keeps them; None where none came in that time.

        Raises `SourceEnded` when no frame will ever come again. A lost source is no end: it may come back.
        """
        ...

    def done(self, frame: Frame) -> None:
        """The frame is answered, or needs no answer: a folder moves or marks its file. Others have nothing to do."""
        ...

    @property
    def status(self) -> SourceStatus:
        """What it is doing now."""
        ...

    def close(self) -> None:
        """Leave no process, descriptor or memory behind; `next` raises `SourceEnded` then. Twice is harmless."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long a live source may bring nothing, and when it is tried again.

    It is lost where no frame differs from the one before for `silent_s`, or where a new connection brings no frame
    within `open_s`. Pauses double from `first_pause_s` to `longest_pause_s`, each cut short by up to half at random, so
    that many cameras behind one switch do not come back at one instant.

    An attempt that hangs must not keep a source away that is back, nor may a slow one be given up: where a connection
    has brought nothing for `rival_s`, another is tried beside it, for as long, again and again, and takes its place
    with its first frame. A broker has `rival_s` to answer. So a source is back within the longer of `longest_pause_s`
    and `rival_s`, and the time to connect.
    """

    silent_s: float = 10.0
    open_s: float = 10.0
    rival_s: float = 2.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 4.0


@dataclass(frozen=True)
class VideoSettings:
    """A stream or a file that PyAV opens: `rtsp://`, `http://` and other addresses are live, the rest are files.

    `fps` is how many frames a second are given on at most, 0 for all; frames left out by it are not captured. `keep` is
    None for the default: `latest` for a live source, `all` for a file. `decoder` asks for one by its name in FFmpeg,
    such as `h264_v4l2m2m`, or by its end, `v4l2m2m`; where that cannot be used the usual one is, and the status says
    which. With a space in it, it is a command line of GStreamer that opens `{address}` and ends with raw video.
    `patience` is for live sources: of a file nothing is tried again.
    """

    address: str
    fps: float = 0.0
    keep: Keep | None = None
    decoder: str = ""
    max_pixels: int = DEFAULT_MAX_PIXELS
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class CameraSettings:
    """A camera of Video4Linux. `width` and `height` ask it for a size, 0 for its own; `fps` asks it for a rate, too."""

    device: str = "/dev/video0"
    width: int = 0
    height: int = 0
    fps: float = 0.0
    keep: Keep = "latest"
    decoder: str = ""
    max_pixels: int = DEFAULT_MAX_PIXELS
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class FolderSettings:
    """A folder of JPEG, PNG and WebP pictures, read in the order of their names. No frame of it is left out.

    `answered` says what happens to a file once its frame is done: it is moved into `done_dir` (`<path>/done` by
    default), an empty file `<name>.done` is made beside it, or it is left, and read again after a restart. Files that
    cannot be read are moved into `<path>/failed`. With `watch` new files are waited for; without it the source ends
    with the last one. A file is read once its size and time have not changed for `settle_s`.
    """

    path: Path
    watch: bool = True
    answered: Literal["move", "mark", "leave"] = "move"
    done_dir: Path | None = None
    settle_s: float = 0.5
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_bytes: int = 256 << 20


@dataclass(frozen=True)
class MqttTopicSettings:
    """A `topic` of the broker `mqtt://HOST[:PORT]`, or `mqtts://` with `tls`.

    The file at `password_file` has the password, and nothing else. A message of more than `max_bytes` is undecodable;
    the broker drops most of them.
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
    """Pictures as JPEG, PNG or WebP, a message each. `fps` is as for `VideoSettings`.

    A picture of more than `max_pixels` is undecodable.
    """

    fps: float = 0.0
    max_pixels: int = DEFAULT_MAX_PIXELS


@dataclass(frozen=True)
class SeriesShape:
    """Which numbers of a sample are taken, and how windows are cut of them.

    A sample is an object of JSON or a row of CSV. `time` names its time stamp, a number in `unit_s` seconds or a text
    of ISO 8601, and `fields` its numbers, `a.b` being `b` within `a`. With `fills` a window with a gap is given, NaN
    where it lies; without it such a window is left out and counted.
    """

    fields: tuple[str, ...]
    cut: WindowShape
    time: str = "time"
    unit_s: float = 1.0
    fills: bool = False


@dataclass(frozen=True)
class SeriesFileSettings:
    """A file of samples in order: CSV with a row of names, or JSON, one object a line (`.jsonl`, `.ndjson`)."""

    path: Path
    shape: SeriesShape
    max_line_bytes: int = 1 << 20


@dataclass(frozen=True)
class SeriesTopicSettings:
    """A topic of MQTT each message of which is a sample, or a list of some, as JSON."""

    topic: MqttTopicSettings
    shape: SeriesShape


@dataclass(frozen=True)
class CustomSettings:
    """A source of somebody else: the name of an entry point of the group `upwell.sources`, and what it is given."""

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

    A password with an unquoted `/` or `?` must not be taken for a path, so an `@` in a path costs the host before it.
    """
    found = _REMOTE.fullmatch(address)
    if found is None:
        return address
    place, _, query = found["rest"].rpartition("@")[2].partition("#")[0].partition("?")
    # A word without a value may be the secret itself, and end in = where it is base64.
    keys = [key if value.strip("=") else "…" for key, _, value in (one.partition("=") for one in query.split("&"))]
    values = "&".join(f"{key}=…" if key != "…" else key for key in keys)
    return f"{found['scheme']}://{place}" + (f"?{values}" if query else "")
