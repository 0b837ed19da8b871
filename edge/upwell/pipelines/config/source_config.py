"""`source` in `pipelines.yaml`: where frames come from, and the settings of the source that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from upwell.pipelines.config.sink_config import BrokerSection, MqttPicturesSection, MqttSamplesSection
from upwell.pipelines.sources.gstreamer import ADDRESS, command_of
from upwell.pipelines.sources.series import SERIES_SUFFIXES
from upwell.pipelines.sources.source_settings import (
    CameraSettings,
    CustomSettings,
    FolderSettings,
    Keep,
    MqttPicturesSettings,
    MqttTopicSettings,
    Patience,
    SeriesFileSettings,
    SeriesShape,
    SeriesTopicSettings,
    SourceSettings,
    VideoSettings,
    shown_address,
)
from upwell.pipelines.sources.windows import WindowShape
from upwell.shared.config.located_errors import Location, located
from upwell.shared.config.security import TlsFiles
from upwell.shared.config.yaml import FilePart, RelativePath, resolve
from upwell.shared.units import Seconds

SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps", "srt", "udp", "http", "https")
"""The schemes of video addresses."""

_NEARLY_ADDRESS = re.compile(rf"(?i)({'|'.join(SCHEMES)})(:|//)")
"""Begins a text that is no file, but an address with a slip in it."""

SOURCE_KINDS = ("video", "camera", "folder", "mqtt", "series", "plugin")
_KINDS = ", ".join(SOURCE_KINDS)

MAX_NUMBERS = 1 << 24
"""Maximum number of values in a window: 128 MiB."""


def _video(value: object, info: ValidationInfo) -> str:
    """An address unchanged, or the absolute path of a file. Raises `ValueError`, which never shows an address."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("expected an address such as rtsp://HOST/PATH, or a file")
    scheme, separator, rest = value.partition("://")
    if not separator:
        if _NEARLY_ADDRESS.match(value):
            raise ValueError("the address cannot be read; expected one such as rtsp://HOST/PATH")
        return str(resolve(value, (info.context or {}).get("base_dir", Path())))
    if scheme not in SCHEMES:
        raise ValueError(
            f"unknown scheme {scheme[:20]!r}; expected one of {', '.join(SCHEMES)}, or write the path of a file"
        )
    try:
        parts = urlsplit(value)
        is_readable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_readable = False
    if not rest or not is_readable or " " in value:
        raise ValueError(f"the address cannot be read; expected {scheme}://HOST, optionally with :PORT and a path")
    return value


def _camera(text: str) -> str:
    if not re.fullmatch(r"/dev/[\w./:+-]+", text, re.ASCII) or ".." in text:
        raise ValueError(f"expected a device such as /dev/video0, got {text[:60]!r}")
    return text


def _decoder(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        command_of(text)
    return text


def _listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class SeriesSection(FilePart):
    """Numbers of a [sensor](#sensors), cut into windows, each a frame; unreadable samples count as `undecodable`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["file"]}, {"required": ["mqtt"]}]})

    file: RelativePath | None = Field(None, description="Samples in order: `.csv` with a row of names, or `.jsonl`.")
    mqtt: MqttSamplesSection | None = None
    time: str = Field(
        "time",
        min_length=1,
        description="Key of the time stamp: a number, or ISO 8601 with its zone.",
    )
    unit: Literal["s", "ms", "us", "ns"] = Field("s", description="Unit of a time stamp that is a number.")
    fields: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, max_length=1024, description="Keys of the numbers; `a.b` is `b` in `a`."
    )
    rate: float = Field(gt=0, le=1e6, description="Points per second in a window.")
    size: int = Field(ge=1, le=MAX_NUMBERS, description="Points in a window.")
    step: int | None = Field(
        None, ge=1, le=MAX_NUMBERS, description="Points from one window to the next; default: `size`."
    )
    gap: Seconds | None = Field(
        None,
        gt=0,
        description="Time between samples that counts as a gap. Default: three points.",
    )
    gaps: Literal["drop", "nan"] = Field(
        "drop",
        description="Windows with a gap are dropped, or hold NaN there.",
    )

    @model_validator(mode="after")
    def _fits(self) -> SeriesSection:
        found: dict[Location, str] = {}
        if (self.file is None) == (self.mqtt is None):
            raise ValueError(f"expected one of `file` and `mqtt`; got {'none' if self.file is None else 'both'}")
        if self.file is not None and self.file.suffix.lower() not in SERIES_SUFFIXES:
            found["file",] = f"expected a file that ends in {', '.join(SERIES_SUFFIXES)}; got {self.file.name[-60:]!r}"
        if self.size * len(self.fields) > MAX_NUMBERS:
            found["size",] = (
                f"a window would have {self.size * len(self.fields)} numbers; expected at most {MAX_NUMBERS}"
            )
        for index, name in enumerate(self.fields):
            if name in self.fields[:index] or name == self.time:
                found["fields", index] = f"{name!r} is repeated; expected different names"
        if found:
            raise located(found)
        return self

    @property
    def gap_s(self) -> float:
        """`gap`, or its default."""
        return self.gap if self.gap is not None else 3 / self.rate


class SourcePluginSection(FilePart):
    """A custom source: an entry point of the group `upwell.sources`."""

    name: str = Field(min_length=1, description="Its name in the group.")
    options: dict[str, Any] = Field({}, description="Its options.")


class CaptureSection(FilePart):
    """Where frames come from, and how."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in SOURCE_KINDS]})

    video: Annotated[str | None, BeforeValidator(_video)] = Field(
        None,
        description="A file, or an address: rtsp, rtsps, rtmp, rtmps, udp, http, https; srt if PyAV has it.",
    )
    camera: Annotated[str, AfterValidator(_camera)] | None = Field(
        None, description="A camera of this machine, such as /dev/video0."
    )
    folder: RelativePath | None = Field(None, description="A folder of pictures, each a frame.")
    mqtt: MqttPicturesSection | None = None
    series: SeriesSection | None = None
    plugin: SourcePluginSection | None = None
    done: Literal["move", "leave"] = Field(
        "leave",
        description="Folder: whether pictures answered or `unchanged` move to its folder `done`; the next start reads "
        "the others again.",
    )
    watch: bool = Field(True, description="Folder: wait for new pictures, else end.")
    fps: float | None = Field(None, gt=0, le=1000, description="Maximum frames per second.")
    deadline: Seconds | None = Field(
        None, gt=0, description="Time from a frame's capture to its answer. Default: the policy's."
    )
    keep: Literal["latest", "all"] | None = Field(
        None,
        description="latest: a newer frame replaces a waiting one; all: the source waits. Default: all for files "
        "and folders, else latest.",
    )
    silent: Seconds = Field(
        10.0,
        gt=0,
        description="A source without a changed frame for this long is reopened.",
    )
    decoder: Annotated[str, Field(min_length=1), AfterValidator(_decoder)] | None = Field(
        None,
        description="Video and camera: a hardware decoder of FFmpeg (`v4l2m2m`), or a [command of "
        "GStreamer](#recipes). Default: software.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> CaptureSection:
        written = [key for key in SOURCE_KINDS if getattr(self, key) is not None]
        if len(written) != 1:
            raise ValueError(f"expected one of {_KINDS}; got {' and '.join(written) or 'none'}")
        pictures = ("video", "camera", "folder", "mqtt")
        others = {
            "done": ("folder",), "watch": ("folder",), "decoder": ("video", "camera"), "fps": pictures,
            "keep": (*pictures, "series"), "silent": (*pictures, "series"),
        }  # fmt: skip
        found: dict[Location, str] = {
            (key,): f"{key} is for {_listed(kinds)}; leave it out with {written[0]}"
            for key, kinds in others.items()
            if key in self.model_fields_set and written[0] not in kinds
        }
        if self.series is not None and self.series.file is not None and self.keep == "latest":
            found["keep",] = "a file is read on demand, so no window replaces another; leave it out"
        if self.decoder is not None and ADDRESS in self.decoder and self.video is not None and "://" in self.video:
            parts = urlsplit(self.video)
            if "@" in parts.netloc:
                text = "all users of this machine can read a command line; expected an address without a password"
                found["decoder",] = text
        if found:
            raise located(found)
        return self

    @property
    def kind(self) -> str:
        """One of `SOURCE_KINDS`."""
        return next(key for key in SOURCE_KINDS if getattr(self, key) is not None)

    @property
    def is_live(self) -> bool:
        """Whether frames arrive on their own: from a camera, a topic, or a video with an address."""
        if self.series is not None:
            return self.series.mqtt is not None
        return self.kind in ("camera", "mqtt", "plugin") or (self.video is not None and "://" in self.video)

    @property
    def keeps(self) -> Literal["latest", "all"]:
        """`keep`, or the default of its kind."""
        return self.keep or ("latest" if self.is_live else "all")

    @property
    def local(self) -> Mapping[tuple[str, ...], Path]:
        """The file, folder or device of this machine that it reads, by its keys; empty for another origin."""
        if self.series is not None:
            return {("series", "file"): self.series.file} if self.series.file is not None else {}
        path = self.folder or self.camera or (None if self.video is None or "://" in self.video else self.video)
        return {} if path is None else {(self.kind,): Path(path)}

    @property
    def place(self) -> str:
        """The origin of the frames as it may be shown: an address without user, password and query."""
        if self.plugin is not None:
            return self.plugin.name
        broker = self.mqtt if self.series is None else self.series.mqtt
        if broker is not None:
            return f"{broker.broker} {broker.topic}"
        if self.series is not None:
            return str(self.series.file)
        if self.video is None or "://" not in self.video:
            return str(self.video or self.camera or self.folder)
        return shown_address(self.video).partition("?")[0]


_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def source_settings(section: CaptureSection) -> SourceSettings:
    """The settings to open the source with."""
    patience = Patience(silent_s=section.silent)
    fps, decoder = section.fps or 0.0, section.decoder or ""
    if section.camera is not None:
        return CameraSettings(section.camera, fps=fps, keep=section.keeps, decoder=decoder, patience=patience)
    if section.folder is not None:
        return FolderSettings(section.folder, section.watch, section.done, fps=fps, keep=section.keeps)
    if section.mqtt is not None:
        topic = _topic(section.mqtt, section.keeps, patience)
        return MqttPicturesSettings(**vars(topic), fps=fps)
    if section.series is not None:
        return _series(section.series, section.keeps, patience)
    if section.plugin is not None:
        return CustomSettings(section.plugin.name, section.plugin.options)
    assert section.video is not None  # noqa: S101  one of them, as the file was checked
    return VideoSettings(section.video, fps, section.keeps, decoder, patience=patience)


def _topic(section: BrokerSection, keep: Keep, patience: Patience) -> MqttTopicSettings:
    tls = TlsFiles(section.cert, section.key, section.ca)
    return MqttTopicSettings(
        section.broker, section.topic, tls, section.user, section.password_file, keep, patience=patience
    )


def _series(section: SeriesSection, keep: Keep, patience: Patience) -> SourceSettings:
    cut = WindowShape(section.rate, section.size, section.step or section.size, section.gap_s)
    shape = SeriesShape(section.fields, cut, section.time, _UNITS[section.unit], section.gaps == "nan")
    if section.mqtt is not None:
        return SeriesTopicSettings(_topic(section.mqtt, keep, patience), shape)
    assert section.file is not None  # noqa: S101  one of the two, as the file was checked
    return SeriesFileSettings(section.file, shape)
