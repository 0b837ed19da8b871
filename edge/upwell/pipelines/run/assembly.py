"""From `pipelines.yaml` to running pipelines: sources open, steps bound to models, sinks behind the outbox."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from upwell.edge.server.core import AgentCore
from upwell.edge.spool.item import SpoolResult
from upwell.pipelines.answered import AnsweredFrame
from upwell.pipelines.config.sections import (
    CaptureSection,
    InferSection,
    KeepSection,
    PipelinesConfig,
    PipelineSection,
    StepSection,
)
from upwell.pipelines.config.sinks import SinkSection
from upwell.pipelines.events.rules import EventRules, load_condition
from upwell.pipelines.frame import FoundObject, Scene
from upwell.pipelines.preview.preview import Preview
from upwell.pipelines.run.amendments import Amendments, WaitingEvent
from upwell.pipelines.run.inference import FrameDropped, Inference, InferFrame, InferObjects, InferSettings, Step
from upwell.pipelines.run.pipeline import Pipeline
from upwell.pipelines.run.publishing import PublishedAs, Publisher, may_leave
from upwell.pipelines.run.runner import PipelineRunner
from upwell.pipelines.sinks.journal import OutboxLimits
from upwell.pipelines.sinks.opening import open_sinks
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.settings import (
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    PicturesSettings,
    SinkSettings,
    WebhookSettings,
)
from upwell.pipelines.sources.base import (
    CameraSettings,
    FolderSettings,
    MqttPicturesSettings,
    Patience,
    SourceSettings,
    VideoSettings,
)
from upwell.pipelines.sources.open_source import open_source
from upwell.pipelines.steps.blur import blur
from upwell.pipelines.steps.change import ChangeDetector
from upwell.pipelines.steps.geometry import Zones
from upwell.pipelines.steps.objects import LOST_S, keep
from upwell.pipelines.steps.tracker import Tracker
from upwell.shared.config.security import TlsFiles

if TYPE_CHECKING:
    from upwell.pipelines.events.where import ObjectCondition

FLUSH_S = 10.0
"""How long the end waits for sinks to take what is in the outbox; the rest stays there."""

_log = logging.getLogger(__name__)

OUTBOX_NAME, AMENDMENTS_NAME = "outbox.db", "amendments.db"


class LateResults:
    """Where the agent's results go; made before the agent, which wants to know, and bound to pipelines after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._take: Callable[[SpoolResult], None] | None = None
        self._early: list[SpoolResult] = []

    def __call__(self, result: SpoolResult) -> None:
        """Take an answer of the cloud to a kept case."""
        with self._lock:
            if self._take is None:
                self._early.append(result)
                return
        self._take(result)

    def bind(self, take: Callable[[SpoolResult], None]) -> None:
        """Give all results to `take`, those that have come already first."""
        with self._lock:
            self._take = take
            early, self._early = self._early, []
        for result in early:
            take(result)


@dataclass(frozen=True)
class BoundSteps:
    """The steps of a pipeline, and what they have in common with its events."""

    steps: tuple[Step, ...]
    zones: Zones
    inferences: Mapping[str, Inference]
    asked_about_objects: Sequence[InferObjects]


def bind_steps(name: str, section: PipelineSection, agent: AgentCore) -> BoundSteps:
    """The steps with the agent's models. Raises `ConfigError` for a model that the agent lacks or that does not fit."""
    zones = section.zones
    models = [one.infer.model for one in section.steps if one.infer is not None]
    steps: list[Step] = []
    for one in section.steps:
        text = one.infer.where if one.infer is not None else one.keep.where if one.keep is not None else None
        condition = load_condition(text, models, zones.polygons, name)
        where = None if condition is None else Where(condition, f"pipeline {name}, step {one.kind}")
        steps.append(_bound(one, where, zones, agent, name))
    infers = [one for one in steps if isinstance(one, (InferFrame, InferObjects))]
    return BoundSteps(
        tuple(steps),
        zones,
        {one.inference.settings.model: one.inference for one in infers},
        [one for one in infers if isinstance(one, InferObjects)],
    )


def _bound(section: StepSection, where: Where | None, zones: Zones, agent: AgentCore, pipeline: str) -> Step:
    if section.infer is not None:
        inference = Inference(agent, _infer_settings(section.infer), pipeline)
        return InferFrame(inference) if section.infer.on == "frame" else InferObjects(inference, where)
    if section.change is not None:
        return _Change(ChangeDetector(section.change.above, section.change.at_least, section.change.ignore))
    if section.track is not None:
        return _Track(Tracker(section.track.lost, section.track.min_score, section.track.weak_score))
    if section.keep is not None:
        return _Keep(section.keep, where)
    if section.blur is not None:
        return _Blur(frozenset(section.blur.labels))
    return _Locate(zones)


def _infer_settings(section: InferSection) -> InferSettings:
    again = section.again
    return InferSettings(
        section.model,
        section.once == "track",
        again.better if again is not None else None,
        again.older if again is not None else None,
        section.margin,
        section.min_size,
        section.tags,
    )


class Where:
    """A condition of a step: not true where it cannot be evaluated, as without an answer that it needs."""

    def __init__(self, condition: ObjectCondition, step: str) -> None:
        self._condition = condition
        self._step = step
        self._has_failed = False

    def __call__(self, found: FoundObject, scene: Scene) -> bool:
        """Whether it is true of the object."""
        try:
            return self._condition.holds(found, scene)
        except ValueError as error:
            if not self._has_failed:
                text = "%s: its condition counts as not true, now and whenever this is so: %s"
                _log.warning(text, self._step, error)
            self._has_failed = True
            return False


@dataclass(frozen=True)
class _Change:
    detector: ChangeDetector

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002  as every step takes it
        if not self.detector.is_changed(scene.frame):
            raise FrameDropped("unchanged")
        return scene


@dataclass(frozen=True)
class _Track:
    tracker: Tracker

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        return replace(scene, objects=self.tracker.update(scene.objects, scene.frame.captured_s))


@dataclass(frozen=True)
class _Locate:
    zones: Zones

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        return replace(scene, objects=self.zones.locate(scene.objects))


@dataclass(frozen=True)
class _Keep:
    section: KeepSection
    where: Where | None

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        objects = keep(scene.objects, self.section.labels, self.section.min_score or 0.0)
        if self.where is not None:
            objects = tuple(found for found in objects if self.where(found, scene))
        return replace(scene, objects=objects)


@dataclass(frozen=True)
class _Blur:
    labels: frozenset[str]

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        boxes = [found.box for found in scene.objects if found.label in self.labels]
        return replace(scene, pixels=blur(scene.pixels, boxes)) if boxes else scene


def source_settings(section: CaptureSection) -> SourceSettings:
    """What the source is opened with."""
    patience = Patience(silent_s=section.silent)
    fps, decoder = section.fps or 0.0, section.decoder or ""
    if section.camera is not None:
        return CameraSettings(section.camera, fps=fps, keep=section.keeps, decoder=decoder, patience=patience)
    if section.folder is not None:
        return FolderSettings(section.folder, section.watch, section.done)
    if section.mqtt is not None:
        mqtt = section.mqtt
        tls = TlsFiles(mqtt.cert, mqtt.key, mqtt.ca)
        return MqttPicturesSettings(
            mqtt.broker, mqtt.topic, tls, mqtt.user, mqtt.password_file, fps, section.keeps, patience=patience
        )
    assert section.video is not None  # noqa: S101  one of them, as the file was checked
    return VideoSettings(section.video, fps, section.keeps, decoder, patience=patience)


def sink_settings(section: SinkSection) -> SinkSettings:
    """What the sink is opened with."""
    if section.jsonl is not None:
        return JsonlSettings(section.jsonl.path, section.jsonl.limit)
    if section.pictures is not None:
        return PicturesSettings(section.pictures.folder, section.pictures.limit)
    if section.webhook is not None:
        hook = section.webhook
        return WebhookSettings(hook.url, hook.secret_file, hook.ca, hook.timeout)
    if section.mqtt is not None:
        mqtt = section.mqtt
        tls = TlsFiles(mqtt.cert, mqtt.key, mqtt.ca)
        return MqttSettings(mqtt.broker, mqtt.topic, tls, mqtt.user, mqtt.password_file)
    assert section.kafka is not None  # noqa: S101  one of them, as the file was checked
    kafka = section.kafka
    files = TlsFiles(kafka.cert, kafka.key, kafka.ca) if kafka.tls else None
    return KafkaSettings(kafka.brokers, kafka.topic, files, kafka.user, kafka.password_file)


@dataclass(frozen=True)
class BuiltPipeline:
    """A pipeline, what writes its events, and what shows it, where it is to be shown."""

    pipeline: Pipeline
    publisher: Publisher
    preview: Preview | None


def build_pipeline(
    name: str, section: PipelineSection, agent: AgentCore, outbox: Outbox, late: Amendments
) -> BuiltPipeline:
    """One pipeline, its source open. Raises `ConfigError`."""
    bound = bind_steps(name, section, agent)
    lost_s = next((one.track.lost for one in section.steps if one.track is not None), LOST_S)
    rules = EventRules([one.rule for one in section.events], bound.zones, list(bound.inferences), name, lost_s)
    infer = next((one.infer for one in section.steps if one.infer is not None), None)
    published_as = PublishedAs(
        name,
        "" if infer is None else infer.model,
        {model: inference.tags for model, inference in bound.inferences.items()},
        any(one.pictures is not None for one in section.sinks),
        bound.zones,
        {model: inference.reader for model, inference in bound.inferences.items()},
    )

    def amended(model: str, track: int, case: str, facts: Mapping[str, Any]) -> None:
        for step in bound.asked_about_objects:
            if step.inference.settings.model == model:
                step.amend(track, case, facts)

    publisher = Publisher(published_as, outbox, late, amended)
    preview: Preview | None = None

    def tell(answered: AnsweredFrame) -> None:
        publisher.publish(answered)
        if preview is not None:
            preview.note(answered)

    source = open_source(source_settings(section.source))
    deadline_s = math.inf if section.source.deadline is None else section.source.deadline
    pipeline = Pipeline(name, source, bound.steps, rules, deadline_s, tell)
    if section.preview:
        preview = Preview(name, bound.zones.polygons, bound.zones.lines, lambda: pipeline.status)
    return BuiltPipeline(pipeline, publisher, preview)


def build_pipelines(
    config: PipelinesConfig, agent: AgentCore, state_dir: Path | None, results: LateResults
) -> PipelineRunner:
    """All pipelines of a file around one agent, not started. Raises `ConfigError`, and leaves nothing open then.

    `state_dir` keeps events that are not delivered yet, and those that wait for the cloud; without it, in memory and
    in a temporary folder, for as long as the process lives.
    """
    publishers: dict[str, Publisher] = {}

    def amend(waiting: WaitingEvent, result: SpoolResult) -> None:
        if waiting.pipeline in publishers:
            publishers[waiting.pipeline].amend(waiting, result)

    with ExitStack() as on_failure:
        folder = state_dir or Path(on_failure.enter_context(TemporaryDirectory(prefix="upwell-pipelines-")))
        sinks = open_sinks(
            {name: [sink_settings(one) for one in section.sinks] for name, section in config.pipelines.items()}
        )
        outbox = Outbox(folder / OUTBOX_NAME, sinks, OutboxLimits(), may_leave(agent.router))
        on_failure.callback(outbox.close)
        late = Amendments(None if state_dir is None else state_dir / AMENDMENTS_NAME, amend)
        on_failure.callback(late.close)
        # Until then answers may come, and amend.
        on_failure.callback(_flush, outbox, "lost" if state_dir is None else "kept for the next start")
        built: list[BuiltPipeline] = []
        for name, section in config.pipelines.items():
            built.append(build_pipeline(name, section, agent, outbox, late))
            on_failure.callback(built[-1].pipeline.close)
            publishers[name] = built[-1].publisher
        results.bind(late.take)
        previews = {one.pipeline.name: one.preview for one in built if one.preview is not None}
        return PipelineRunner([one.pipeline for one in built], previews, outbox, on_failure.pop_all())


def _flush(outbox: Outbox, fate: str) -> None:
    """Wait for the sinks, and say what they have not taken."""
    if not outbox.flush(FLUSH_S):
        for sink, counts in outbox.counts().items():
            if counts.waiting:
                _log.warning("%d events that the sink %s has not taken are %s", counts.waiting, sink, fate)
