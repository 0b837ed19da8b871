"""From `pipelines.yaml` to running pipelines: opens sources and sinks, and puts the steps between them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeAlias

from upwell.edge.observe.flight_recorder import FRAMES_NAME, LIMIT, FlightRecorder
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.config.pipelines_config import PipelinesConfig, PipelineSection
from upwell.pipelines.config.sink_config import sink_settings
from upwell.pipelines.config.source_config import source_settings
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame
from upwell.pipelines.preview.preview import Preview
from upwell.pipelines.run.bound_steps import BoundSteps, bind_steps
from upwell.pipelines.run.event_publisher import PublishedAs, Publisher, may_leave
from upwell.pipelines.run.frame_loop import FrameLoop, FrameNotes
from upwell.pipelines.run.late_answers import AMENDMENTS_NAME, Amendments, LateResults, WaitingEvent
from upwell.pipelines.run.pipeline_runner import BuiltPipeline, PipelineRunner
from upwell.pipelines.sinks.base import Sink
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits
from upwell.pipelines.sinks.outbox_store import OUTBOX_NAME
from upwell.pipelines.sinks.sink_opening import open_sinks
from upwell.pipelines.sinks.sink_settings import SinkSettings
from upwell.pipelines.sources.frame_slot import WHOLE, Wanted
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.steps.geometry import LOST_S
from upwell.shared.platform.memory import map_large_blocks

FLUSH_S = 3.0
"""How long shutdown waits for sinks to accept what is in the outbox; the rest stays there."""

_OpenSinks: TypeAlias = list[tuple[SinkSettings, Sink]]
_NONE: Mapping[str, PipelineSection] = MappingProxyType({})
_log = logging.getLogger(__name__)


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

    def retire_sinks(self, config: PipelinesConfig) -> None:
        """End the sinks that the file does not have and that accept nothing; what waits for them has a last chance.

        Before the pipelines are ended: their frames go on while a dead receiver is waited for.
        """
        failing = self._outbox.failing(self._leaving(config))
        if failing and not self._outbox.flush(FLUSH_S, failing):
            self._end_sinks(self._outbox.failing(failing))

    def use_sinks(self, config: PipelinesConfig) -> None:
        """Open the sinks of the file that are not open, and close those that it does not have.

        On `ConfigError` some sinks may be closed until the next call for a file that has them.
        """
        wanted, leaving = _wanted_sinks(config), self._leaving(config)
        if leaving:
            self._outbox.flush(FLUSH_S, leaving)
            self._end_sinks(leaving)
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

    def _leaving(self, config: PipelinesConfig) -> list[str]:
        wanted = [one for of_pipeline in _wanted_sinks(config).values() for one in of_pipeline]
        return [sink.name for settings, sink in self._sinks if settings not in wanted]

    def _end_sinks(self, names: Sequence[str]) -> None:
        self._outbox.end(names)
        self._sinks = [one for one in self._sinks if one[1].name not in names]


def _wanted_sinks(config: PipelinesConfig) -> dict[str, list[SinkSettings]]:
    return {name: [sink_settings(one) for one in section.sinks] for name, section in config.pipelines.items()}


def _paired(wanted: Mapping[str, Sequence[SinkSettings]], opened: Mapping[str, Sequence[Sink]]) -> _OpenSinks:
    """Each sink once, with its settings."""
    pairs = [pair for name in wanted for pair in zip(wanted[name], opened[name], strict=True)]
    return [*{id(sink): (settings, sink) for settings, sink in pairs}.values()]


def _publisher(
    name: str, section: PipelineSection, bound: BoundSteps, shared: SharedParts, notes: FrameNotes | None
) -> Publisher:
    infer = next((one.infer for one in section.steps if one.infer is not None), None)
    published_as = PublishedAs(
        name,
        "" if infer is None else infer.model,
        bound.tags,
        any(one.pictures is not None for one in section.sinks),
        bound.zones,
        {model: inference.reader for model, inference in bound.inferences.items()},
        bound.detectors,
        bound.keeps,
    )

    def amended(model: str, track: int, case: str, facts: Mapping[str, Any]) -> None:
        for step in bound.asked_about_objects:
            if step.inference.settings.model == model:
                step.amend(track, case, facts)

    note = (lambda _: None) if notes is None else notes.note_amendment
    return Publisher(published_as, shared.outbox, shared.late, amended, note)


def _notes(name: str, section: PipelineSection, shared: SharedParts) -> FrameNotes | None:
    return None if shared.frames is None else FrameNotes(name, _deadline_s(section), shared.frames)


def _deadline_s(section: PipelineSection) -> float:
    return math.inf if section.source.deadline is None else section.source.deadline


def _build_pipeline(name: str, section: PipelineSection, agent: AgentCore, shared: SharedParts) -> BuiltPipeline:
    """One pipeline with its source open. Raises `ConfigError`."""
    bound = bind_steps(name, section, agent)
    lost_s = next((one.track.lost for one in section.steps if one.track is not None), LOST_S)
    rules = EventRules([one.rule for one in section.events], bound.zones, list(bound.inferences), name, lost_s)
    notes = _notes(name, section, shared)
    publisher = _publisher(name, section, bound, shared, notes)
    preview: Preview | None = None

    def tell(frame: AnsweredFrame | DroppedFrame) -> bool:
        fired = frame.fired if isinstance(frame, AnsweredFrame) else ()
        events = publisher.publish(frame) if isinstance(frame, AnsweredFrame) else ()
        if notes is not None:
            notes.note(frame, events)
        if preview is not None and isinstance(frame, AnsweredFrame):
            preview.note(frame)
        return len(events) == len(fired)

    needs_whole = shared.shows_frames or _needs_whole(section)
    source = open_source(source_settings(section.source), lambda: WHOLE if needs_whole else _wanted(bound))
    pipeline = FrameLoop(name, source, bound.steps, rules, _deadline_s(section), tell)
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
    others: Mapping[str, PipelineSection] = _NONE,
) -> PipelineRunner:
    """All pipelines of a file around one agent, not started. Raises `ConfigError`, and then leaves nothing open.

    If nobody looks at whole frames, the decoder shrinks them to what the model sees. `shows_frames` says that the
    caller looks at them. The pipelines `others` are run by other programs, for which events and amendments wait.

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
        outbox = Outbox(folder / OUTBOX_NAME, opened, OutboxLimits(), may_leave(agent.router), others)
        on_failure.callback(outbox.close)
        late = Amendments(None if state_dir is None else state_dir / AMENDMENTS_NAME, amend)
        on_failure.callback(late.close)
        late.forget_unkept(outbox.last_sequences())
        on_failure.callback(results.unbind)
        # Until then answers may come and amend events.
        on_failure.callback(_flush, outbox, "lost" if state_dir is None else "kept for the next start")
        frames, limit = None, LIMIT if agent.flight_recorder is None else agent.flight_recorder.limit
        if state_dir is not None and limit:
            frames = FlightRecorder(state_dir / FRAMES_NAME, limit)
            on_failure.callback(frames.close)
        shared = SharedParts(outbox, late, frames, shows_frames)
        for name, section in others.items():
            bound = bind_steps(name, section, agent)
            publishers[name] = _publisher(name, section, bound, shared, _notes(name, section, shared))
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
