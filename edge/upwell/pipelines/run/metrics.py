"""Pipelines and their sinks for a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from upwell.pipelines.answered import percentile
from upwell.pipelines.run.pipeline import Pipeline
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sources.base import SourceState

_SINK_OUTCOMES = (
    "delivered", "denied", "poisoned", "dropped_size", "dropped_age", "removed", "damaged", "refused",
)  # fmt: skip


def pipeline_families(pipelines: Mapping[str, Pipeline]) -> Iterable[Metric]:
    """How the pipelines do."""
    frames = CounterMetricFamily(
        "upwell_pipeline_frames", "Frames by what became of them.", labels=["pipeline", "outcome"]
    )
    events = CounterMetricFamily("upwell_pipeline_events", "Events.", labels=["pipeline", "event"])
    captured = CounterMetricFamily("upwell_pipeline_captured", "Frames captured.", labels=["pipeline"])
    live = GaugeMetricFamily("upwell_pipeline_source_live", "1 while the source brings frames.", labels=["pipeline"])
    reconnects = CounterMetricFamily(
        "upwell_pipeline_source_reconnects", "Times the source was lost and opened again.", labels=["pipeline"]
    )
    latency = GaugeMetricFamily(
        "upwell_pipeline_latency_seconds",
        "From capture to answer, of the latest frames.",
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
    """What became of events."""
    messages = CounterMetricFamily(
        "upwell_pipeline_sink_messages", "Events by what became of them for a sink.", labels=["sink", "outcome"]
    )
    failures = CounterMetricFamily(
        "upwell_pipeline_sink_failures",
        "Deliveries that a sink could not take, which are tried again.",
        labels=["sink"],
    )
    waiting = GaugeMetricFamily("upwell_pipeline_sink_waiting", "Events that wait for a sink.", labels=["sink"])
    for name, counts in outbox.counts().items():
        for outcome in _SINK_OUTCOMES:
            messages.add_metric([name, outcome], getattr(counts, outcome))
        failures.add_metric([name], counts.failures)
        waiting.add_metric([name], counts.waiting)
    return messages, failures, waiting
