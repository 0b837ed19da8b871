"""From `pipelines.yaml` to running pipelines: opens sources, binds steps to models, puts sinks behind the outbox."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from upwell.edge.observe.flight_recorder import FRAMES_NAME, FlightRecorder
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.spool.result_sinks import TakeLater
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.config.pipelines_config import (
    InferSection,
    KeepSection,
    PipelinesConfig,
    PipelineSection,
    StepSection,
)
from upwell.pipelines.config.sink_config import SinkSection
from upwell.pipelines.config.source_config import source_settings
from upwell.pipelines.events.event_rules import EventRules, load_condition
from upwell.pipelines.frame import FoundObject, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame
from upwell.pipelines.preview.preview import Preview
from upwell.pipelines.run.event_publisher import PublishedAs, Publisher, may_leave
from upwell.pipelines.run.frame_loop import FrameLoop, FrameNotes
from upwell.pipelines.run.infer_step import FrameDropped, Inference, InferFrame, InferObjects, InferSettings, Step
from upwell.pipelines.run.late_answers import AMENDMENTS_NAME, Amendments, WaitingEvent
from upwell.pipelines.run.pipeline_runner import BuiltPipeline, PipelineRunner
from upwell.pipelines.sinks.base import (
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    PicturesSettings,
    PluginSettings,
    Sink,
    SinkSettings,
    WebhookSettings,
)
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits
from upwell.pipelines.sinks.outbox_tables import OUTBOX_NAME
from upwell.pipelines.sinks.sink_opening import open_sinks
from upwell.pipelines.sources.frame_slot import WHOLE, Wanted
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.steps.blur import blur
from upwell.pipelines.steps.change import ChangeDetector
from upwell.pipelines.steps.geometry import LOST_S, Zones, keep
from upwell.pipelines.steps.tracker import Tracker
from upwell.shared.config.security import TlsFiles
from upwell.shared.platform.process import map_large_blocks

if TYPE_CHECKING:
    from upwell.pipelines.events.where_condition import ObjectCondition

FLUSH_S = 3.0
"""How long shutdown waits for sinks to accept what is in the outbox; the rest stays there."""

_BOUND_S = 2.0
"""How long a result waits for the pipelines to start before it is postponed."""

_OpenSinks: TypeAlias = list[tuple[SinkSettings, Sink]]
_log = logging.getLogger(__name__)


class LateResults:
    """Receives the agent's late results. It exists before the agent, which needs it, and is bound to the pipelines
    later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._take: Callable[[SpoolResult], None] | None = None

    def __call__(self, result: SpoolResult) -> None:
        """Take an answer of the cloud to a stored case. Raises `TakeLater` if no pipeline is there to take it."""
        with self._changed:  # held until it is taken, so that nothing it needs is closed
            self._changed.wait_for(lambda: self._take is not None, _BOUND_S)
            if self._take is None:
                raise TakeLater("the pipelines are not running")
            self._take(result)

    def bind(self, take: Callable[[SpoolResult], None]) -> None:
        """Give all results to `take` from now on."""
        with self._changed:
            self._take = take
            self._changed.notify_all()

    def unbind(self) -> None:
        """Take no more results; later ones are kept for the next start."""
        with self._changed:
            self._take = None


@dataclass(frozen=True)
class BoundSteps:
    """The steps of a pipeline, and what they share with its events."""

    steps: tuple[Step, ...]
    zones: Zones
    inferences: Mapping[str, Inference]
    asked_about_objects: Sequence[InferObjects]


def bind_steps(name: str, section: PipelineSection, agent: AgentCore) -> BoundSteps:
    """Bind the steps to the agent's models. Raises `ConfigError` for a model that the agent lacks or that does not
    fit.
    """
    zones = section.zones
    models = [one.infer.model for one in section.steps if one.infer is not None]
    series = section.source.series
    window = None if series is None else (series.size, len(series.fields))
    steps: list[Step] = []
    for one in section.steps:
        text = one.infer.where if one.infer is not None else one.keep.where if one.keep is not None else None
        condition = load_condition(text, models, zones.polygons, name)
        where = None if condition is None else Where(condition, f"pipeline {name}, step {one.kind}")
        if one.infer is not None:
            inference = Inference(agent, _infer_settings(one.infer), name, window)
            steps.append(InferFrame(inference) if one.infer.on == "frame" else InferObjects(inference, where))
        else:
            steps.append(_bound(one, where, zones))
    infers = [one for one in steps if isinstance(one, (InferFrame, InferObjects))]
    return BoundSteps(
        tuple(steps),
        zones,
        {one.inference.settings.model: one.inference for one in infers},
        [one for one in infers if isinstance(one, InferObjects)],
    )


def _bound(section: StepSection, where: Where | None, zones: Zones) -> Step:
    """A step that asks no model."""
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
    """A step's condition: false if it cannot be evaluated, for example without an answer that it needs."""

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
                text = "%s: the condition counts as false whenever it cannot be evaluated: %s"
                _log.warning(text, self._step, error)
            self._has_failed = True
            return False


@dataclass(frozen=True)
class _Change:
    detector: ChangeDetector
    name: ClassVar[str] = "change"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002  as every step takes it
        if not self.detector.is_changed(scene.frame):
            raise FrameDropped("unchanged")
        return scene


@dataclass(frozen=True)
class _Track:
    tracker: Tracker
    name: ClassVar[str] = "track"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        return replace(scene, objects=self.tracker.update(scene.objects, scene.frame.at_s))


@dataclass(frozen=True)
class _Locate:
    zones: Zones
    name: ClassVar[str] = "zones"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        return replace(scene, objects=self.zones.locate(scene.objects))


@dataclass(frozen=True)
class _Keep:
    section: KeepSection
    where: Where | None
    name: ClassVar[str] = "keep"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        objects = keep(scene.objects, self.section.labels, self.section.min_score or 0.0)
        if self.where is not None:
            objects = tuple(found for found in objects if self.where(found, scene))
        return replace(scene, objects=objects)


@dataclass(frozen=True)
class _Blur:
    labels: frozenset[str]
    name: ClassVar[str] = "blur"

    def take(self, scene: Scene, until_s: float) -> Scene:  # noqa: ARG002
        boxes = [found.box for found in scene.objects if found.label in self.labels]
        return replace(scene, pixels=blur(scene.pixels, boxes)) if boxes else scene


def sink_settings(section: SinkSection) -> SinkSettings:
    """The settings to open the sink with."""
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
    if section.plugin is not None:
        return PluginSettings(section.plugin.name, section.plugin.options)
    assert section.kafka is not None  # noqa: S101  one of them, as the file was checked
    kafka = section.kafka
    files = TlsFiles(kafka.cert, kafka.key, kafka.ca) if kafka.tls else None
    return KafkaSettings(kafka.brokers, kafka.topic, files, kafka.user, kafka.password_file)


@dataclass(frozen=True)
class SharedParts:
    """What all pipelines around an agent write to; `frames` is None if no frames are to be recorded.

    `shows_frames`: the caller, who iterates over a pipeline, looks at the frames' pixels.
    """

    outbox: Outbox
    late: Amendments
    frames: FlightRecorder | None
    shows_frames: bool


class PipelineFactory:
    """Builds the pipelines of files around one agent, with one outbox for all of them."""

    def __init__(
        self, agent: AgentCore, shared: SharedParts, publishers: dict[str, Publisher], sinks: _OpenSinks
    ) -> None:
        self._agent = agent
        self._shared = shared
        self._outbox = shared.outbox
        self._publishers = publishers
        self._sinks = sinks

    def check(self, name: str, section: PipelineSection) -> None:
        """Raise `ConfigError` if the steps cannot be bound to the agent's models."""
        bind_steps(name, section, self._agent)

    def use_sinks(self, config: PipelinesConfig) -> None:
        """Open the sinks of the file that are not open, and close those that it does not have.

        On `ConfigError` some sinks may be closed until the next call for a file that has them.
        """
        wanted = _wanted_sinks(config)
        all_wanted = [one for of_pipeline in wanted.values() for one in of_pipeline]
        leaving = [sink.name for settings, sink in self._sinks if settings not in all_wanted]
        if leaving:
            self._outbox.flush(FLUSH_S, leaving)
            self._outbox.end(leaving)
            self._sinks = [one for one in self._sinks if one[1].name not in leaving]
        opened = open_sinks(wanted, self._sinks)
        self._outbox.change(opened)
        self._sinks = _paired(wanted, opened)

    def build(self, name: str, section: PipelineSection) -> BuiltPipeline:
        """One pipeline with its source open. Raises `ConfigError`."""
        built = _build_pipeline(name, section, self._agent, self._shared)
        self._publishers[name] = built.publisher
        return built

    def forget(self, name: str) -> None:
        """Stop amending events of this pipeline."""
        self._publishers.pop(name, None)


def _wanted_sinks(config: PipelinesConfig) -> dict[str, list[SinkSettings]]:
    return {name: [sink_settings(one) for one in section.sinks] for name, section in config.pipelines.items()}


def _paired(wanted: Mapping[str, Sequence[SinkSettings]], opened: Mapping[str, Sequence[Sink]]) -> _OpenSinks:
    """Each sink once, with its settings."""
    pairs = [pair for name in wanted for pair in zip(wanted[name], opened[name], strict=True)]
    return [*{id(sink): (settings, sink) for settings, sink in pairs}.values()]


def _build_pipeline(name: str, section: PipelineSection, agent: AgentCore, shared: SharedParts) -> BuiltPipeline:
    """One pipeline with its source open. Raises `ConfigError`."""
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

    deadline_s = math.inf if section.source.deadline is None else section.source.deadline
    notes = None if shared.frames is None else FrameNotes(name, deadline_s, shared.frames)
    note = (lambda _: None) if notes is None else notes.note_amendment
    publisher = Publisher(published_as, shared.outbox, shared.late, amended, note)
    preview: Preview | None = None

    def tell(frame: AnsweredFrame | DroppedFrame) -> None:
        events = publisher.publish(frame) if isinstance(frame, AnsweredFrame) else ()
        if notes is not None:
            notes.note(frame, events)
        if preview is not None and isinstance(frame, AnsweredFrame):
            preview.note(frame)

    needs_whole = shared.shows_frames or _needs_whole(section)
    source = open_source(source_settings(section.source), lambda: WHOLE if needs_whole else _wanted(bound))
    pipeline = FrameLoop(name, source, bound.steps, rules, deadline_s, tell)
    if section.preview:
        preview = Preview(name, bound.zones.polygons, bound.zones.lines, lambda: pipeline.status)
    return BuiltPipeline(pipeline, publisher, preview)


def _needs_whole(section: PipelineSection) -> bool:
    """Whether anything looks at the frame's pixels besides models that are asked about the whole frame."""
    looks = [step.blur is not None or (step.infer is not None and step.infer.on == "objects") for step in section.steps]
    return section.preview or any(looks) or any(sink.pictures is not None for sink in section.sinks)


def _wanted(bound: BoundSteps) -> Wanted:
    """The size that all models see of a frame; the whole frame if several models see it."""
    sizes = {inference.wanted for inference in bound.inferences.values()}
    return sizes.pop() if len(sizes) == 1 else WHOLE


def build_pipelines(
    config: PipelinesConfig,
    agent: AgentCore,
    state_dir: Path | None,
    results: LateResults,
    *,
    shows_frames: bool = False,
) -> PipelineRunner:
    """All pipelines of a file around one agent, not started. Raises `ConfigError`, and then leaves nothing open.

    If nobody looks at whole frames, the decoder shrinks them to what the model sees. `shows_frames` says that the
    caller looks at them.

    `state_dir` holds undelivered events and events that wait for the cloud. Without it they live in memory and in a
    temporary folder for as long as the process does. Records of frames are kept in `state_dir` only.
    """
    map_large_blocks()  # each frame takes several, and is freed within milliseconds
    publishers: dict[str, Publisher] = {}

    def amend(waiting: WaitingEvent, result: SpoolResult) -> bool:
        publisher = publishers.get(waiting.pipeline)  # of a removed pipeline nothing is amended: done
        return publisher is None or publisher.amend(waiting, result)

    with ExitStack() as on_failure:
        folder = state_dir or Path(on_failure.enter_context(TemporaryDirectory(prefix="upwell-pipelines-")))
        wanted = _wanted_sinks(config)
        opened = open_sinks(wanted)
        outbox = Outbox(folder / OUTBOX_NAME, opened, OutboxLimits(), may_leave(agent.router))
        on_failure.callback(outbox.close)
        late = Amendments(None if state_dir is None else state_dir / AMENDMENTS_NAME, amend)
        on_failure.callback(late.close)
        late.forget_unkept(outbox.last_sequences())
        on_failure.callback(results.unbind)
        # Until then answers may come and amend events.
        on_failure.callback(_flush, outbox, "lost" if state_dir is None else "kept for the next start")
        frames, limit = None, agent.flight_recorder.limit
        if state_dir is not None and limit:
            frames = FlightRecorder(state_dir / FRAMES_NAME, limit)
            on_failure.callback(frames.close)
        shared = SharedParts(outbox, late, frames, shows_frames)
        factory = PipelineFactory(agent, shared, publishers, _paired(wanted, opened))
        runner = PipelineRunner(factory, outbox, on_failure.pop_all())
    try:
        runner.change(config)
    except BaseException:
        runner.close()
        raise
    results.bind(late.take)
    return runner


def _flush(outbox: Outbox, fate: str) -> None:
    """Wait for the sinks, and log what they have not accepted."""
    if not outbox.flush(FLUSH_S):
        for sink, counts in outbox.counts().items():
            if counts.waiting:
                _log.warning("%d events not taken by the sink %s are %s", counts.waiting, sink, fate)
