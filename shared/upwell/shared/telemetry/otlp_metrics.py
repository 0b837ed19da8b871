"""Pushes the metrics of a registry to an OpenTelemetry collector, for processes that cannot be scraped."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version as package_version
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
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
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.telemetry.otlp_spans import TIMEOUT_S, hush_exporters, hush_thread
from upwell.shared.telemetry.telemetry_keys import MetricsPush

_CLOSE_S = 3.0
_log = logging.getLogger(__name__)


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
    """Follows no redirects, and reads only the head of a reply."""

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """Raises `requests.TooManyRedirects` for a redirect."""
        response = super().request(*arguments, **{**named, "allow_redirects": False, "stream": True})
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
