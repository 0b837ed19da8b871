"""Pushes recorded requests, and the metrics of a registry, to an OpenTelemetry collector."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version as package_version
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.telemetry.telemetry_keys import MetricsPush
from upwell.shared.telemetry.tracing import Span

TIMEOUT_S = 5.0
"""Time limit for a delivery with all its retries (seconds)."""
MAX_WAITING = 1024
"""Maximum number of requests whose spans wait to be delivered; further ones are dropped."""

_MOST_SPANS = 64  # spans per request, on average over the queue: far more than one has
_EVERY_S = 1.0
_BATCH = 512
_CLOSE_S = 3.0
# These report each failure; deliveries that fail, and succeed again, are reported once here.
_ITS_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.common.http",
)  # fmt: skip
_ours = threading.local()

_log = logging.getLogger(__name__)


def otlp_delivery(url: str, name: str, instance: str) -> SpanDelivery:
    """A delivery that posts OTLP/HTTP with protobuf to `url`, for `instance` of the service `name`.

    OpenTelemetry's environment variables apply too: headers with the collector's credentials
    (`OTEL_EXPORTER_OTLP_HEADERS`), certificates, and further attributes of the service.
    """
    hush_exporters()
    resource = Resource.create(
        {
            "service.name": name,
            "service.version": package_version("upwell"),
            "service.instance.id": instance,
            "process.pid": os.getpid(),
        }
    )
    return SpanDelivery(OTLPSpanExporter(url, timeout=TIMEOUT_S, session=_Session()), resource)


class SpanDelivery(SpanExporter):
    """Delivers through OpenTelemetry's `BatchSpanProcessor`: its queue, and its thread, which calls `export` here.

    If the collector is slow or gone, spans are lost but no request is delayed. The processor would drop single spans
    silently, so whole requests are dropped before its queue is full, and counted.
    """

    def __init__(self, exporter: SpanExporter, resource: Resource, max_waiting: int = MAX_WAITING) -> None:
        self._exporter = exporter
        self._resource = resource
        self._scope = InstrumentationScope("upwell", package_version("upwell"))
        self._max_waiting = max_waiting
        self._waiting = 0
        self._became: Counter[str] = Counter()
        self._works = True
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._processor = BatchSpanProcessor(self, _BATCH + max_waiting * _MOST_SPANS, 1e3 * _EVERY_S, _BATCH)

    @property
    def became(self) -> Mapping[str, int]:
        """Numbers of recorded requests that were `sent`, `dropped` (queue full) and `failed` (collector)."""
        with self._lock:
            return dict(self._became)

    def put(self, trace_id: str, spans: Sequence[Span]) -> None:
        """Queue all spans of one request, the root first. Returns at once. Thread-safe."""
        with self._lock:
            if self._waiting >= self._max_waiting or self._closing.is_set():
                self._became["dropped"] += 1
                return
            self._waiting += 1
        offset_ns = time.time_ns() - round(1e9 * time.monotonic())
        for index, span in enumerate(spans):
            self._processor.on_end(self._readable(trace_id, span, offset_ns, is_root=not index))

    def close(self) -> None:
        """Deliver what is queued, for a few seconds at most. May be called twice."""
        if not self._closing.is_set():
            self._closing.set()
            # The processor waits for up to half a minute, and has no option to change that.
            closing = threading.Thread(target=self._processor.shutdown, name="upwell-traces", daemon=True)
            closing.start()
            closing.join(_CLOSE_S)
            self.shutdown()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Deliver spans; called by the processor's thread alone."""
        hush_thread()
        try:
            result = self._exporter.export(spans)
        except requests.RequestException:
            result = SpanExportResult.FAILURE
        works = result is SpanExportResult.SUCCESS
        count = sum(span.kind is SpanKind.SERVER for span in spans)
        with self._lock:
            self._waiting -= count
            self._became["sent" if works else "failed"] += count
        if self._works and not works:
            _log.warning("traces cannot be delivered; they are dropped until the collector accepts them again")
        elif works and not self._works:
            _log.info("traces are being delivered again")
        self._works = works
        return result

    def shutdown(self) -> None:
        """Stop between two attempts."""
        if not self._ended.is_set():
            self._ended.set()
            self._exporter.shutdown()

    def _readable(self, trace_id: str, span: Span, offset_ns: int, *, is_root: bool) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            _context(trace_id, span.span_id),
            _context(trace_id, span.parent_id, is_remote=is_root) if span.parent_id else None,
            self._resource,
            span.attributes,
            links=[Link(_context(place.trace_id, place.span_id)) for place in span.links],
            kind=SpanKind.SERVER if is_root else SpanKind.CLIENT if span.is_call else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=offset_ns + round(1e9 * span.started_s),
            end_time=offset_ns + round(1e9 * span.ended_s),
            instrumentation_scope=self._scope,
        )


def hush_exporters() -> None:
    """Silence OpenTelemetry's exporters in threads that called `hush_thread`."""
    for logger in _ITS_LOGGERS:
        logging.getLogger(logger).addFilter(_is_of_others)


def hush_thread() -> None:
    """Mark this thread as one that delivers for Upwell."""
    _ours.delivers = True


def _is_of_others(_: logging.LogRecord) -> bool:
    """Whether a log record is not about our own deliveries: the embedding program may have its own."""
    return not getattr(_ours, "delivers", False)


def _context(trace_id: str, span_id: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))


class MetricsDelivery:
    """Pushes the metrics of `families` every `section.every` seconds, from its own thread, until `close`.

    `attributes` identify the source of the metrics, and are read anew each time. Counters are sent as cumulative sums
    under their names on the metrics page, so a failed push loses only one sample, and nothing is kept for later: a
    collector that is gone costs no memory, however long.
    """

    def __init__(
        self,
        section: MetricsPush,
        families: Callable[[], Iterable[Metric]],
        attributes: Callable[[], Mapping[str, str]],
    ) -> None:
        hush_exporters()
        self._every_s = section.every
        self._families = families
        self._attributes = attributes
        self._exporter: MetricExporter = OTLPMetricExporter(section.url, timeout=TIMEOUT_S, session=_Session())
        self._scope = InstrumentationScope("upwell", package_version("upwell"))
        self._started_ns = time.time_ns()
        self._became: Counter[str] = Counter()
        self._works = True
        self._stop = threading.Event()
        self._thread = BackgroundThread("metrics-push", self._loop, self._stop.is_set)
        self._thread.start()

    @property
    def became(self) -> Mapping[str, int]:
        """Numbers of pushes that were `sent` and that `failed`."""
        return {"sent": self._became["sent"], "failed": self._became["failed"]}

    def close(self) -> None:
        """Push once more if the collector answers, for a few seconds at most. May be called twice."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(_CLOSE_S)
            self._exporter.shutdown()

    def _loop(self) -> None:
        hush_thread()
        wait_s = min(1.0, self._every_s)
        while not self._stop.wait(wait_s):
            self._push()
            wait_s = self._every_s * (0.9 + 0.2 * random.random())  # noqa: S311 (spreads the pushes; not a secret)
        if self._works:
            self._push()

    def _push(self) -> None:
        now_ns = time.time_ns()
        metrics = [one for family in self._families() if (one := as_otlp(family, self._started_ns, now_ns)) is not None]
        resource = Resource.create(dict(self._attributes()))
        scoped = ScopeMetrics(self._scope, metrics, "")
        try:
            result = self._exporter.export(MetricsData([ResourceMetrics(resource, [scoped], "")]))
        except requests.RequestException:
            result = MetricExportResult.FAILURE
        works = result is MetricExportResult.SUCCESS
        self._became["sent" if works else "failed"] += 1
        if self._works and not works:
            _log.warning("metrics cannot be pushed; they will be pushed once the collector accepts them again")
        elif works and not self._works:
            _log.info("metrics are being pushed again")
        self._works = works


class _Session(requests.Session):
    """Follows no redirects, and reads only the head of a reply. The connection is kept if that is all."""

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """Raises `requests.TooManyRedirects` for a redirect."""
        response = super().request(*arguments, **{**named, "allow_redirects": False, "stream": True})
        if response.headers.get("Content-Length") == "0":
            response.raw.drain_conn()  # there is nothing to read, and the connection is kept
        response.close()
        if response.is_redirect:
            raise requests.TooManyRedirects("the collector answers with a redirect, which is not followed")
        return response


def as_otlp(family: Metric, started_ns: int, now_ns: int) -> OtlpMetric | None:
    """A family of the metrics page as an OTLP metric; None if it has no value now. NaN ("unknown") is left out.

    A counter whose family does not say when it started has started at `started_ns`.
    """
    if family.type == "histogram":
        histograms = [_histogram(samples, started_ns, now_ns) for samples in _by_labels(family.samples).values()]
        return OtlpMetric(
            family.name, family.documentation, "", Histogram(histograms, AggregationTemporality.CUMULATIVE)
        ) if histograms else None  # fmt: skip
    is_counter = family.type == "counter"
    name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
    since = {
        _key(one): round(1e9 * one.value) for one in family.samples if is_counter and one.name.endswith("_created")
    }
    points = [
        NumberDataPoint(one.labels, since.get(_key(one), started_ns) if is_counter else 0, now_ns, one.value)
        for one in family.samples
        if one.name == name and not math.isnan(one.value)
    ]
    if not points:
        return None
    data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    return OtlpMetric(name, family.documentation, "", data)


def _key(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))


def _by_labels(samples: Sequence[Sample]) -> dict[tuple[tuple[str, str], ...], list[Sample]]:
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for one in samples:
        found.setdefault(_key(one), []).append(one)
    return found


def _histogram(samples: Sequence[Sample], started_ns: int, now_ns: int) -> HistogramDataPoint:
    """The histogram of one set of labels; buckets are cumulative on the page, but not in OTLP."""
    values = {one.name.rpartition("_")[2]: one.value for one in samples}
    buckets = sorted((float(one.labels["le"]), one.value) for one in samples if "le" in one.labels)
    counts = [int(count) for _, count in buckets]
    apart = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
    began_ns = round(1e9 * values["created"]) if "created" in values else started_ns
    labels, bounds = dict(_key(samples[0])), [bound for bound, _ in buckets if bound < math.inf]
    none: Any = None  # optional on the wire, unlike in the SDK's types
    return HistogramDataPoint(
        labels, began_ns, now_ns, counts[-1] if counts else 0, values.get("sum", 0.0), apart, bounds, none, none
    )
