"""Carries recorded requests to an OpenTelemetry collector. The only module that imports OpenTelemetry."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from importlib.metadata import version as package_version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from upwell.shared.telemetry.trace import Place, Span
from upwell.shared.telemetry.tracer import THREAD, Recorded

TIMEOUT_S = 5.0
"""For one delivery with all its attempts."""

# They tell of each failure; that deliveries fail, and that they succeed again, is told once by the tracer.
_ITS_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.exporter.otlp.common.http")


class OtlpExporter:
    """Posts spans as OTLP/HTTP with protobuf to `url`. Used by one thread, but for `stop`.

    What OpenTelemetry reads from the environment holds too: headers with the collector's credentials
    (`OTEL_EXPORTER_OTLP_HEADERS`), its certificates, and further attributes of the service.
    """

    def __init__(self, url: str, name: str, instance: str) -> None:
        for logger in _ITS_LOGGERS:
            logging.getLogger(logger).addFilter(_is_of_others)
        self._ids = _Ids()
        self._ended = _Ended()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(
                {
                    "service.name": name,
                    "service.version": package_version("upwell"),
                    "service.instance.id": instance,
                    "process.pid": os.getpid(),
                }
            ),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("upwell", package_version("upwell"))
        self._exporter = OTLPSpanExporter(url, timeout=TIMEOUT_S)

    def send(self, batch: Sequence[Recorded]) -> bool:
        """Whether the collector took them, in a few attempts."""
        now_s, now_ns = time.monotonic(), time.time_ns()

        def epoch_ns(instant_s: float) -> int:
            return now_ns + round(1e9 * (instant_s - now_s))

        for recorded in batch:
            for index, span in enumerate(recorded.spans):
                self._make(recorded.trace_id, span, epoch_ns(span.started_s), epoch_ns(span.ended_s), is_root=not index)
        spans, self._ended.spans = self._ended.spans, []
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def stop(self) -> None:
        """Break off between two attempts."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no types

    def _make(self, trace_id: str, span: Span, started_ns: int, ended_ns: int, *, is_root: bool) -> None:
        self._ids.trace_id, self._ids.span_id = int(trace_id, 16), int(span.span_id, 16)
        # With an invalid parent the span is the first of its trace.
        parent = _context(trace_id, span.parent_id or "0", is_remote=is_root)
        made = self._tracer.start_span(
            span.name,
            set_span_in_context(NonRecordingSpan(parent)),
            SpanKind.SERVER if is_root else SpanKind.CLIENT if span.is_call else SpanKind.INTERNAL,
            span.attributes,
            [Link(_of_place(place)) for place in span.links],
            started_ns,
        )
        if span.error:
            made.set_status(StatusCode.ERROR, span.error)
        made.end(ended_ns)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether a log record is not about our own deliveries: a program that we are part of may have others."""
    return record.threadName != THREAD


class _Ids(IdGenerator):
    """The ids are known before: others were told of them already."""

    trace_id = 0
    span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def _of_place(place: Place) -> SpanContext:
    return _context(place.trace_id, place.span_id, is_remote=False)


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))
