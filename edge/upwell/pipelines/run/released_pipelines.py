"""The pipelines of a release in the place of the device's own, and what the device's floor does not allow in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.config import AgentConfig
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.stored_release import StoredRelease
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.config.sink_config import BrokerSection, KafkaSection, SinkPluginSection, WebhookSection
from upwell.pipelines.config.source_config import CaptureSection, SourcePluginSection
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy

_log = logging.getLogger(__name__)


class ReleasedPipelines:
    """A `Companion`: `load` reads and checks a file for an agent of this configuration, `change` applies it."""

    def __init__(
        self,
        own: Path,
        config: AgentConfig,
        load: Callable[[Path, AgentConfig], PipelinesConfig],
        change: Callable[[PipelinesConfig], None],
    ) -> None:
        assert config.release is not None  # noqa: S101  there would be no releases
        written = config.release.floor
        self._own = own
        self._config = config
        self._floor = DeviceFloor(Policy(), written.endpoints, written.folders)
        self._load = load
        self._change = change

    def check(self, stored: StoredRelease) -> None:
        """Check that the pipelines fit the release's models and use nothing that the device's floor does not allow."""
        if stored.pipelines is not None:
            check_floor(self._load(stored.pipelines, self._with_bundles(stored)), self._floor, stored.sequence)

    def take(self, stored: StoredRelease | None) -> None:
        """Run the pipelines of the release. If that fails now, it is logged and the former ones go on."""
        config = self._config if stored is None else self._with_bundles(stored)
        path = self._own if stored is None or stored.pipelines is None else stored.pipelines
        try:
            self._change(self._load(path, config))
        except ConfigError as error:
            _log.error("the release's pipelines are not in force: %s", error)

    def _with_bundles(self, stored: StoredRelease) -> AgentConfig:
        """The configuration as if the release were installed."""
        models = dict(self._config.models)
        for name, bundle in stored.bundles.items():
            section = models.get(name)
            if section is not None and section.edge is not None:
                side = section.edge.model_copy(update={"bundle": bundle.folder, "file": None})
                models[name] = section.model_copy(update={"edge": side})
        return self._config.model_copy(update={"models": models})


def check_floor(config: PipelinesConfig, floor: DeviceFloor, sequence: int) -> None:
    """Raise `BundleRefused` (`LOOSENED`) for what the device's floor does not allow.

    That is a path or an address that the floor does not list, and whatever could name others by itself: a GStreamer
    command line, or a custom source or sink. A camera of the device is allowed.
    """
    for part in _parts(config):
        if isinstance(part, Path):
            floor.check_folder(sequence, part)
        elif isinstance(part, (BrokerSection, WebhookSection)):
            floor.check_endpoint(sequence, str(part.address))
        elif isinstance(part, KafkaSection):
            for address in part.brokers:
                floor.check_endpoint(sequence, address)
        elif isinstance(part, CaptureSection):
            _check_source(part, floor, sequence)
        elif isinstance(part, SourcePluginSection):
            raise _could_do_anything(sequence, "a custom source")
        elif isinstance(part, SinkPluginSection):
            raise _could_do_anything(sequence, "a custom sink")


def _check_source(source: CaptureSection, floor: DeviceFloor, sequence: int) -> None:
    if source.video is not None and "://" in source.video:
        floor.check_endpoint(sequence, urlsplit(source.video).netloc.rpartition("@")[2])
    elif source.video is not None:
        floor.check_folder(sequence, Path(source.video))
    if source.decoder is not None and " " in source.decoder:
        raise _could_do_anything(sequence, "a command line")


def _could_do_anything(sequence: int, what: str) -> BundleRefused:
    problem = f"release {sequence} names {what}, which could do anything; only agent.yaml's own pipelines may have one"
    return BundleRefused(Refusal.LOOSENED, None, problem)


def _parts(value: object) -> Iterator[object]:
    """Every path and section of a file, at any depth."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _parts(getattr(value, name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from _parts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _parts(one)
