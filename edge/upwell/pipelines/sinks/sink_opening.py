"""Opens sinks from their settings. The package of a sink is imported when the sink is opened, not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import cast

from upwell.pipelines.sinks.base import Sink
from upwell.pipelines.sinks.file_sinks import JsonlFile, PictureFolder
from upwell.pipelines.sinks.outbox import sinks_by_name
from upwell.pipelines.sinks.sink_settings import (
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    PicturesSettings,
    PluginSettings,
    SinkSettings,
    WebhookSettings,
)
from upwell.pipelines.sinks.webhook import Webhook
from upwell.shared.errors import ConfigError, ExtraMissing

GROUP = "upwell.sinks"
"""The entry-point group of sinks: callables that take the options as keywords and return a `Sink`."""


def open_sinks(
    settings: Mapping[str, Sequence[SinkSettings]], known: Sequence[tuple[SinkSettings, Sink]] = ()
) -> dict[str, list[Sink]]:
    """The sinks by pipeline; those in `known` are already open. Pipelines with the same settings share a sink.

    On `ConfigError`, also for two sinks of one name, no sink stays open that was not open before.
    """
    opened: list[tuple[SinkSettings, Sink]] = [*known]

    def of(wanted: SinkSettings) -> Sink:
        for one, sink in opened:
            if one == wanted:
                return sink
        opened.append((wanted, open_sink(wanted)))
        return opened[-1][1]

    try:
        sinks = {pipeline: [of(wanted) for wanted in of_pipeline] for pipeline, of_pipeline in settings.items()}
        sinks_by_name(sinks)
        return sinks
    except BaseException:  # no sink must stay open, whatever the error
        for _, sink in opened[len(known) :]:
            sink.close()
        raise


def open_sink(settings: SinkSettings) -> Sink:
    """Open the sink with these settings. Raises `ConfigError`, also if a package is missing."""
    if isinstance(settings, JsonlSettings):
        return JsonlFile(settings)
    if isinstance(settings, PicturesSettings):
        return PictureFolder(settings)
    if isinstance(settings, WebhookSettings):
        return Webhook(settings)
    if isinstance(settings, MqttSettings):
        with ExtraMissing.on_import("pipelines", "the sink mqtt needs PACKAGE"):
            from upwell.pipelines.sinks.mqtt import MqttPublisher
        return MqttPublisher(settings)
    if isinstance(settings, KafkaSettings):
        with ExtraMissing.on_import("kafka", "the sink kafka needs PACKAGE"):
            from upwell.pipelines.sinks.kafka import KafkaPublisher
        return KafkaPublisher(settings)
    return _plugin(settings)


def _plugin(settings: PluginSettings) -> Sink:
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if settings.name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError.at(None, f"there is no sink {settings.name!r}; the group {GROUP} has: {known}")
    try:
        sink = found[settings.name].load()(**settings.options)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  somebody else's module, which may fail in any way
        raise ConfigError.at(None, f"the sink {settings.name!r} cannot be opened: {error}") from None
    if not all(hasattr(sink, name) for name in ("name", "leaves_device", "deliver", "close")):
        raise ConfigError.at(
            None, f"the sink {settings.name!r} is {found[settings.name].value}, which does not return a sink"
        )
    return cast(Sink, sink)
