"""Runs several pipelines around one agent, each in its own thread, and exchanges those that change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from upwell.edge.observe.agent_health import HealthPart
from upwell.pipelines.config.pipelines_config import PipelinesConfig, PipelineSection
from upwell.pipelines.frame_outcome import percentile
from upwell.pipelines.preview.preview import Preview
from upwell.pipelines.run.event_publisher import Publisher
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sources.base import SourceState, SourceStatus
from upwell.shared.errors import ConfigError
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.closing import Closing

_HANGING_S = 5.0
"""Time after which a frame in progress counts as hung."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuiltPipeline:
    """A pipeline, its publisher, and its preview if it has one."""

    pipeline: FrameLoop
    publisher: Publisher
    preview: Preview | None


class Factory(Protocol):
    """Builds what a file names. All methods raise `ConfigError`."""

    def check(self, name: str, section: PipelineSection) -> None:
        """Check that the pipelines fit the agent's models; opens nothing."""

    def retire_sinks(self, config: PipelinesConfig) -> None:
        """End those sinks that the file does not have and that accept nothing."""

    def use_sinks(self, config: PipelinesConfig) -> None:
        """Open exactly the sinks of this file."""

    def build(self, name: str, section: PipelineSection) -> BuiltPipeline:
        """One pipeline, with its source open."""
        ...

    def forget(self, name: str) -> None:
        """The pipeline has been removed."""


class PipelineRunner(Closing):
    """Runs pipelines until their sources end or it is closed. Call `change` from one thread at a time.

    `parts` are closed after the pipelines, the last first. `previews` show some of them, by name; the `outbox` has
    their events.
    """

    def __init__(self, factory: Factory, outbox: Outbox, parts: ExitStack) -> None:
        self._factory = factory
        self._outbox = outbox
        self._parts = parts
        self._sections: Mapping[str, PipelineSection] = {}
        self._pipelines: dict[str, FrameLoop] = {}
        self._previews: dict[str, Preview] = {}
        self._threads: dict[str, BackgroundThread] = {}
        self._is_started = self._is_stopped = False
        self._changing = threading.Lock()

    @property
    def pipelines(self) -> Mapping[str, FrameLoop]:
        """The current pipelines, by name."""
        return dict(self._pipelines)

    @property
    def previews(self) -> Mapping[str, Preview]:
        """The previews by name: a view that changes with the pipelines."""
        return MappingProxyType(self._previews)

    def start(self) -> None:
        """Start to take frames."""
        with self._changing:
            self._is_started = True
            for thread in self._threads.values():
                thread.start()

    def change(self, config: PipelinesConfig) -> None:
        """Run the pipelines of this file from now on; unchanged ones go on undisturbed.

        A changed pipeline ends after the frame in progress and starts again: tracks are not carried over. On
        `ConfigError` the former ones keep running.
        """
        with self._changing:
            if self._is_stopped:
                return
            former, sections = self._sections, config.pipelines
            missing = sections.keys() - self._pipelines.keys()  # could not be started again after a change that failed
            changed = [one for one in {**former, **sections} if former.get(one) != sections.get(one) or one in missing]
            for name in changed:
                if name in sections:
                    self._factory.check(name, sections[name])
            self._factory.retire_sinks(config)  # frames go on meanwhile
            self._end(changed)
            try:
                self._begin(config, changed)
            except ConfigError:
                self._end(changed)
                if former:
                    self._begin(config.model_copy(update={"pipelines": former}), changed)
                raise
            if former:
                _log.info("the pipelines have changed: %s", ", ".join(changed) or "nothing in them")

    def _begin(self, config: PipelinesConfig, names: Collection[str]) -> None:
        self._factory.use_sinks(config)
        self._sections = config.pipelines
        for name in names:
            if name not in config.pipelines:
                self._factory.forget(name)
                continue
            built = self._factory.build(name, config.pipelines[name])
            self._pipelines[name] = pipeline = built.pipeline
            if built.preview is not None:
                self._previews[name] = built.preview
            self._threads[name] = _thread(pipeline)
            if self._is_started:
                self._threads[name].start()

    def _end(self, names: Collection[str]) -> None:
        """End those of these pipelines that exist, after the frames in progress."""
        ending = [self._pipelines[name] for name in names if name in self._pipelines]
        for pipeline in ending:
            pipeline.stop()
        for pipeline in ending:
            _end(pipeline, self._threads.pop(pipeline.name))
            del self._pipelines[pipeline.name]
            self._previews.pop(pipeline.name, None)

    @property
    def is_over(self) -> bool:
        """Whether every source has ended. Waits for a change in progress, during which none may run."""
        with self._changing:
            is_whole = self._threads.keys() == self._sections.keys()  # else the next change may start what is missing
            return is_whole and not any(thread.is_alive() for thread in self._threads.values())

    @property
    def has_failed(self) -> bool:
        """Whether a source stopped for any other reason than its end: the file is missing or cut off."""
        return any(_is_broken_off(pipeline.source.status) for pipeline in self.pipelines.values())

    @property
    def undelivered(self) -> int:
        """The number of events that sinks have not accepted yet. After `close` they are kept or lost."""
        return sum(counts.waiting for counts in self._outbox.counts().values())

    def stop(self) -> None:
        """Take no more frames and changes."""
        with self._changing:
            self._is_stopped = True
            for pipeline in self._pipelines.values():
                pipeline.stop()

    def close(self) -> None:
        """End after the frames in progress, and close all parts. Calling it twice is harmless."""
        self.stop()
        with self._changing:
            for name, pipeline in self._pipelines.items():
                _end(pipeline, self._threads[name])
            self._parts.close()

    def health(self) -> HealthPart:
        """The state of all pipelines for `/health`: a source that is lost or broke off, or a sink that accepts nothing,
        is a problem of the agent.
        """
        statuses = [pipeline.status for pipeline in self.pipelines.values()]
        facts = {
            one.name: {
                "source": str(one.source.state),
                "explained": one.source.explained,
                "decoder": one.source.decoder,
                "captured": one.captured,
                "frames": {outcome: count for outcome, count in one.frames.items() if count},
                "events": dict(one.events),
                "last_failure": one.last_failure,
            }
            for one in statuses
        }
        problems = [
            f"pipeline {one.name}: the source {'is lost' if is_lost else 'has ended'}: {one.source.explained}"
            for one in statuses
            if (is_lost := one.source.state is SourceState.LOST) or _is_broken_off(one.source)
        ]
        return HealthPart(facts, problems + self._outbox.problems())

    def families(self) -> Iterable[Metric]:
        """The metrics of all pipelines, for a scrape."""
        return *pipeline_families(self.pipelines), *sink_families(self._outbox)


def _is_broken_off(source: SourceStatus) -> bool:
    """Whether it ended for any other reason than its end."""
    return source.state is SourceState.ENDED and source.explained != ""


def _thread(pipeline: FrameLoop) -> BackgroundThread:
    return BackgroundThread(f"pipeline-{pipeline.name}", lambda: _run(pipeline), lambda: pipeline.is_stopped)


def _end(pipeline: FrameLoop, thread: BackgroundThread) -> None:
    """Close a stopped pipeline after the frame in progress. One that hangs is abandoned."""
    is_started = thread.ident is not None
    if is_started:
        thread.join(_HANGING_S)
    try:
        pipeline.close()  # a custom source may hang until it is closed, or for ever
    except Exception as error:  # noqa: BLE001  somebody else's module, which may fail in any way
        _log.error("pipeline %s: the source cannot be closed: %s", pipeline.name, type(error).__name__)
    if is_started:
        thread.join(_HANGING_S)
        if thread.is_alive():
            _log.warning("pipeline %s: the source or a step hangs; the pipeline is abandoned", pipeline.name)


def _run(pipeline: FrameLoop) -> None:
    for _ in pipeline:
        pass
    if not pipeline.is_stopped:
        source = pipeline.source.status
        if source.explained:
            _log.error("pipeline %s: the source has ended: %s", pipeline.name, source.explained)
        else:
            _log.info("pipeline %s: the source has ended", pipeline.name)


_SINK_OUTCOMES = (
    "delivered", "denied", "poisoned", "dropped_size", "dropped_age", "removed", "damaged", "refused",
)  # fmt: skip


def pipeline_families(pipelines: Mapping[str, FrameLoop]) -> Iterable[Metric]:
    """The metrics of the pipelines."""
    frames = CounterMetricFamily("upwell_pipeline_frames", "Frames by outcome.", labels=["pipeline", "outcome"])
    events = CounterMetricFamily("upwell_pipeline_events", "Events.", labels=["pipeline", "event"])
    captured = CounterMetricFamily("upwell_pipeline_captured", "Frames captured.", labels=["pipeline"])
    live = GaugeMetricFamily("upwell_pipeline_source_live", "1 while the source delivers frames.", labels=["pipeline"])
    reconnects = CounterMetricFamily(
        "upwell_pipeline_source_reconnects", "Times the source was lost and reopened.", labels=["pipeline"]
    )
    latency = GaugeMetricFamily(
        "upwell_pipeline_latency_seconds",
        "Time from capture to answer of the latest frames.",
        labels=["pipeline", "quantile"],
    )
    for name, pipeline in pipelines.items():
        status = pipeline.status
        captured.add_metric([name], status.captured)
        live.add_metric([name], float(status.source.state is SourceState.LIVE))
        reconnects.add_metric([name], status.source.reconnects)
        for outcome, count in status.frames.items():
            frames.add_metric([name, outcome], count)
        for event, count in status.events.items():
            events.add_metric([name, event], count)
        ordered = sorted(status.latencies_s)
        for quantile in (0.5, 0.99):
            latency_s = percentile(ordered, quantile)
            if latency_s is not None:
                latency.add_metric([name, str(quantile)], latency_s)
    return captured, frames, events, live, reconnects, latency


def sink_families(outbox: Outbox) -> Iterable[Metric]:
    """The metrics of the sinks."""
    messages = CounterMetricFamily(
        "upwell_pipeline_sink_messages", "Events by outcome for a sink.", labels=["sink", "outcome"]
    )
    failures = CounterMetricFamily(
        "upwell_pipeline_sink_failures",
        "Failed deliveries to a sink, which are tried again.",
        labels=["sink"],
    )
    waiting = GaugeMetricFamily("upwell_pipeline_sink_waiting", "Events waiting for a sink.", labels=["sink"])
    for name, counts in outbox.counts().items():
        for outcome in _SINK_OUTCOMES:
            messages.add_metric([name, outcome], getattr(counts, outcome))
        failures.add_metric([name], counts.failures)
        waiting.add_metric([name], counts.waiting)
    return messages, failures, waiting
