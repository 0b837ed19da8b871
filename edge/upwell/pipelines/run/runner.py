"""Several pipelines around one agent, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from upwell.edge.observe.health import HealthPart
from upwell.pipelines.answered import percentile
from upwell.pipelines.preview.preview import Preview
from upwell.pipelines.run.pipeline import Pipeline
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sources.base import SourceState
from upwell.shared.platform.background_thread import BackgroundThread

_SINK_OUTCOMES = ("delivered", "denied", "poisoned", "dropped_size", "dropped_age", "damaged", "refused")
_log = logging.getLogger(__name__)


class PipelineRunner:
    """Runs `pipelines` until their sources are over or it is closed. `parts` are closed after them, the last first.

    `previews` show some of them, by name; the `outbox` has their events.
    """

    def __init__(
        self, pipelines: Sequence[Pipeline], previews: Mapping[str, Preview], outbox: Outbox, parts: ExitStack
    ) -> None:
        self.pipelines: Mapping[str, Pipeline] = {one.name: one for one in pipelines}
        self.previews = previews
        self._outbox = outbox
        self._parts = parts
        self._is_closing = threading.Event()
        self._threads = {
            one.name: BackgroundThread(f"pipeline-{one.name}", lambda one=one: self._run(one), self._is_closing.is_set)  # type: ignore[misc]  # bound now
            for one in pipelines
        }

    def start(self) -> None:
        """Take frames from now on."""
        for thread in self._threads.values():
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether every source has ended."""
        return not any(thread.is_alive() for thread in self._threads.values())

    @property
    def has_failed(self) -> bool:
        """Whether a source ended for another reason than its end: no such file, or one that is cut off."""
        return any(
            status.state is SourceState.ENDED and status.explained != ""
            for status in (pipeline.source.status for pipeline in self.pipelines.values())
        )

    def close(self) -> None:
        """End after the frames that are under way, and close all parts. Calling it twice is harmless."""
        self._is_closing.set()
        for pipeline in self.pipelines.values():
            pipeline.stop()
        for thread in self._threads.values():
            if thread.ident is not None:
                thread.join()
        for pipeline in self.pipelines.values():
            pipeline.close()
        self._parts.close()

    def __enter__(self) -> PipelineRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> HealthPart:
        """How they do, for `/health`: a source that is lost is a problem of the whole."""
        statuses = [pipeline.status for pipeline in self.pipelines.values()]
        lost = [one for one in statuses if one.source.state is SourceState.LOST]
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
        return HealthPart(facts, [f"pipeline {one.name}: the source is lost: {one.source.explained}" for one in lost])

    def families(self) -> Iterable[Metric]:
        """How the pipelines do, for a scrape."""
        frames = CounterMetricFamily(
            "upwell_pipeline_frames", "Frames by what became of them.", labels=["pipeline", "outcome"]
        )
        events = CounterMetricFamily("upwell_pipeline_events", "Events.", labels=["pipeline", "event"])
        captured = CounterMetricFamily("upwell_pipeline_captured", "Frames captured.", labels=["pipeline"])
        live = GaugeMetricFamily(
            "upwell_pipeline_source_live", "1 while the source brings frames.", labels=["pipeline"]
        )
        reconnects = CounterMetricFamily(
            "upwell_pipeline_source_reconnects", "Times the source was lost and opened again.", labels=["pipeline"]
        )
        latency = GaugeMetricFamily(
            "upwell_pipeline_latency_seconds",
            "From capture to answer, of the latest frames.",
            labels=["pipeline", "quantile"],
        )
        for name, pipeline in self.pipelines.items():
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
        return captured, frames, events, live, reconnects, latency, *self._sink_families()

    def _sink_families(self) -> Iterable[Metric]:
        messages = CounterMetricFamily(
            "upwell_pipeline_sink_messages", "Events by what became of them for a sink.", labels=["sink", "outcome"]
        )
        failures = CounterMetricFamily(
            "upwell_pipeline_sink_failures",
            "Deliveries that a sink could not take, which are tried again.",
            labels=["sink"],
        )
        waiting = GaugeMetricFamily("upwell_pipeline_sink_waiting", "Events that wait for a sink.", labels=["sink"])
        for name, counts in self._outbox.counts().items():
            for outcome in _SINK_OUTCOMES:
                messages.add_metric([name, outcome], getattr(counts, outcome))
            failures.add_metric([name], counts.failures)
            waiting.add_metric([name], counts.waiting)
        return messages, failures, waiting

    def _run(self, pipeline: Pipeline) -> None:
        for _ in pipeline:
            pass
        if not self._is_closing.is_set():
            source = pipeline.source.status
            if source.explained:
                _log.error("pipeline %s: the source is over: %s", pipeline.name, source.explained)
            else:
                _log.info("pipeline %s: the source is over", pipeline.name)
