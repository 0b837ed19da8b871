"""Runs the pipelines of a file around an agent and follows changes of the file; a release can take their place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.config import AgentConfig
from upwell.edge.observe.agent_health import HealthPart
from upwell.edge.policy.periodic_jobs import PeriodicJobs
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.stored_release import StoredRelease
from upwell.pipelines.config.model_signatures import signatures_of
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.config.sink_config import BrokerSection, KafkaSection, SinkPluginSection, WebhookSection
from upwell.pipelines.config.source_config import CaptureSection, SourcePluginSection
from upwell.pipelines.preview.preview import check_preview_address
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.run.pipeline_runner import PipelineRunner
from upwell.shared.config.yaml import read_text
from upwell.shared.errors import ConfigError
from upwell.shared.platform.watched_files import SettledFile
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


def load(path: Path, agent: AgentConfig) -> PipelinesConfig:
    """Load the file and check it against the agent's models and address; log warnings. Raises `ConfigError`."""
    config, warnings = parse_pipelines(read_text(path), path, signatures_of(agent))
    for name, section in config.pipelines.items():
        if section.preview:
            check_preview_address(agent.agent.metrics, f"pipelines.{name}.preview")
    for warning in warnings:
        _log.warning("%s", warning)
    return config


@contextmanager
def running_file(path: Path, config: AgentConfig, agent: AgentCore, results: LateResults) -> Iterator[PipelineRunner]:
    """The pipelines of the file, not started, in the agent's metrics and health; changes of the file are applied.

    A wrong file is refused as a whole, and the former pipelines go on. If agent.yaml says where releases come from,
    the pipelines of a release replace those of the file. Raises `ConfigError` if the file is wrong at the start.
    """

    def take(changed: PipelinesConfig) -> str:
        try:
            runner.change(changed)
        except ConfigError as error:
            return str(error)
        return ""

    file = SettledFile(path, lambda: load(path, config), take, "pipelines")

    def health() -> HealthPart:
        part = runner.health()
        problems = [f"the pipelines file is not in force: {file.problem}"] if file.problem else []
        return replace(part, problems=[*problems, *part.problems])

    with build_pipelines(file.value, agent, config.agent.state_dir, results) as runner:
        agent.metrics.export(runner.families)
        agent.describe_with("pipelines", health)
        if agent.release is not None:  # releases alone decide; the file is what the device came with
            agent.release.run_pipelines(ReleasedPipelines(path, config, load, runner.change))
        watching = PeriodicJobs(*([file.poll] if agent.release is None else []))
        try:
            yield runner
        finally:
            runner.stop()  # so that no change is applied any more
            watching.close()
