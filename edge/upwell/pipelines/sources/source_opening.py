"""Opens the source for given settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

from upwell.pipelines.sources.base import Source
from upwell.pipelines.sources.folder import PictureFolder
from upwell.pipelines.sources.frame_slot import WHOLE, Wanted
from upwell.pipelines.sources.series import SeriesFile
from upwell.pipelines.sources.source_settings import (
    CustomSettings,
    FolderSettings,
    MqttPicturesSettings,
    SeriesFileSettings,
    SeriesTopicSettings,
    SourceSettings,
)
from upwell.pipelines.sources.video import VideoSource
from upwell.shared.errors import ConfigError

GROUP = "upwell.sources"
"""The entry-point group of sources: each entry names a `SourceFactory` by its kind of source."""

SourceFactory: TypeAlias = Callable[[Mapping[str, Any]], Source]
"""Opens a source from the options under its kind. Raises `ConfigError` for unknown options."""


def open_source(settings: SourceSettings, wanted: Callable[[], Wanted] = lambda: WHOLE) -> Source:
    """Open the source, which begins at once to look for frames; the caller closes it. Having none yet is no error.

    `wanted` is a size to which cameras and videos may shrink each picture: see `VideoSource`.

    Raises `ConfigError` for a kind that is not installed, a missing package, or unusable files.
    """
    if isinstance(settings, CustomSettings):
        return _plugin(settings)
    if isinstance(settings, FolderSettings):
        _check_installed("a folder", "watchfiles")
        return PictureFolder(settings)
    if isinstance(settings, SeriesFileSettings):
        return SeriesFile(settings)
    if isinstance(settings, (MqttPicturesSettings, SeriesTopicSettings)):
        _check_installed("an MQTT topic", "paho")
        from upwell.pipelines.sources.mqtt import MqttPictures, MqttSeries  # few need its package

        return MqttPictures(settings) if isinstance(settings, MqttPicturesSettings) else MqttSeries(settings)
    _check_installed("a camera or video", "av")
    return VideoSource(settings, wanted)


def _check_installed(what: str, package: str) -> None:
    """Raise here: a decoder's process without its package would just die."""
    if find_spec(package) is None:
        install = "pip install 'upwell[pipelines]'"
        raise ConfigError.at(None, f"{what} needs the package {package}, which is not installed: {install}")


def _plugin(settings: CustomSettings) -> Source:
    """Open a custom source. Raises `ConfigError`, whatever its factory raises."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if settings.kind not in found:
        installed = ", ".join(sorted(found)) or "none"
        raise ConfigError.at(None, f"there is no source {settings.kind!r}; the group {GROUP} has: {installed}")
    try:
        source = cast(SourceFactory, found[settings.kind].load())(settings.options)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  somebody else's module, which may fail in any way
        raise ConfigError.at(None, f"the source {settings.kind!r} cannot be opened: {error}") from None
    if not all(hasattr(source, name) for name in ("next", "done", "status", "close")):
        value = found[settings.kind].value
        raise ConfigError.at(None, f"the source {settings.kind!r} is {value}, which does not return a source")
    return source
