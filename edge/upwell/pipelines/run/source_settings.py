"""From `source` of a pipelines file to the settings of a source."""

from __future__ import annotations

from upwell.pipelines.config.sink_config import BrokerSection
from upwell.pipelines.config.source_config import CaptureSection, SeriesSection
from upwell.pipelines.sources.base import (
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
)
from upwell.pipelines.sources.windows import WindowShape
from upwell.shared.config.security import TlsFiles

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def source_settings(section: CaptureSection) -> SourceSettings:
    """The settings to open the source with."""
    patience = Patience(silent_s=section.silent)
    fps, decoder = section.fps or 0.0, section.decoder or ""
    if section.camera is not None:
        return CameraSettings(section.camera, fps=fps, keep=section.keeps, decoder=decoder, patience=patience)
    if section.folder is not None:
        return FolderSettings(section.folder, section.watch, section.done)
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
