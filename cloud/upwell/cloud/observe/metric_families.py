"""Every metric of the service: name with unit, help text, labels, and how the values of several workers combine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Literal, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

Labels: TypeAlias = tuple[str, ...]
Snapshot: TypeAlias = Mapping[str, Mapping[Labels, Sequence[float]]]
"""Metric name -> label values -> numbers: one number, or for a histogram the count of each bucket, the count above the
last bound, and the sum."""


@dataclass(frozen=True)
class Family:
    """One metric. `bounds` are the buckets of a histogram. `across` says how a gauge of several workers combines."""

    kind: Literal["counter", "histogram", "gauge"]
    text: str
    labels: Labels = ()
    bounds: Sequence[float] = ()
    across: Literal["sum", "most", "least"] = "sum"

    def merged(self, one: Sequence[float], other: Sequence[float]) -> Sequence[float]:
        """The combined values of two processes."""
        pairs = zip(one, other, strict=True)
        if self.across == "sum":
            return [a + b for a, b in pairs]
        return [max(pair) if self.across == "most" else min(pair) for pair in pairs]


_MODEL = ("model", "version")

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "upwell_cloud_requests": Family("counter", "Requests answered, by gRPC status.", (*_MODEL, "status")),
        "upwell_cloud_error_answers": Family("counter", "Calls of any method that ended in an error.", ("status",)),
        "upwell_cloud_thread_restarts": Family("counter", "Background threads restarted after a failure.", ("thread",)),
        "upwell_cloud_request_seconds": Family(
            "histogram", "Time to the answer, of requests answered OK.", _MODEL, SECONDS
        ),
        "upwell_cloud_queue_seconds": Family("histogram", "Of that, the wait for an instance.", _MODEL, SECONDS),
        "upwell_cloud_compute_seconds": Family("histogram", "Duration of an engine run.", _MODEL, SECONDS),
        "upwell_cloud_batch_rows": Family("histogram", "Rows in an engine run.", _MODEL, ROWS),
        "upwell_cloud_waiting_requests": Family("gauge", "Requests waiting for an instance.", _MODEL),
        "upwell_cloud_model_ready": Family(
            "gauge", "1 if the version is ready in all workers.", _MODEL, across="least"
        ),
        "upwell_cloud_model_load_seconds": Family(
            "gauge", "Time to load and warm up; the longest of all workers.", _MODEL, across="most"
        ),
        "upwell_cloud_client_bytes": Family(
            "counter", "Bytes of tensors that clients sent (in) and received (out).", ("client", "direction")
        ),
        "upwell_cloud_client_device_seconds": Family(
            "counter", "Engine time, divided among clients by their share of the rows.", ("client",)
        ),
        "upwell_cloud_cpu_seconds": Family("counter", "CPU time of the serving processes."),
        "upwell_cloud_resident_memory_bytes": Family("gauge", "Resident memory of the serving processes."),
        "upwell_cloud_workers": Family("gauge", "Serving processes."),
        "upwell_cloud_traces": Family("counter", "Requests recorded for traces, by outcome.", ("became",)),
    }
)


class Histogram:
    """Counts by bucket, and the sum. Not thread-safe."""

    __slots__ = ("_bounds", "values")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.values = [0.0] * (len(bounds) + 2)

    def add(self, value: float) -> None:
        """Count one value; a bucket includes its upper bound."""
        values = self.values
        values[bisect_left(self._bounds, value)] += 1
        values[-1] += value


def merged(snapshots: Iterable[Snapshot]) -> dict[str, dict[Labels, Sequence[float]]]:
    """The combined snapshots of several processes."""
    whole: dict[str, dict[Labels, Sequence[float]]] = {}
    for snapshot in snapshots:
        for name, table in snapshot.items():
            into = whole.setdefault(name, {})
            for labels, values in table.items():
                into[labels] = FAMILIES[name].merged(into[labels], values) if labels in into else values
    return whole


def counted(snapshot: Snapshot) -> Snapshot:
    """What stays of the snapshot of a process that has ended: everything but its gauges."""
    return {name: table for name, table in snapshot.items() if FAMILIES[name].kind != "gauge"}


class CloudCollector(Collector):
    """Turns the snapshots that `read` returns into metrics on each scrape."""

    def __init__(self, read: Callable[[], Iterable[Snapshot]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, also those without a value yet."""
        whole = merged(self._read())
        for name, family in FAMILIES.items():
            yield _metric(name, family, whole.get(name, {}))


def _metric(name: str, family: Family, table: Mapping[Labels, Sequence[float]]) -> Metric:
    rows = sorted(table.items())
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.text, labels=family.labels)
        bounds = [*map(str, family.bounds), "+Inf"]
        for labels, (*counts, total) in rows:
            histogram.add_metric(labels, [*zip(bounds, accumulate(counts), strict=True)], total)
        return histogram
    plain = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
        name, family.text, labels=family.labels
    )
    for labels, (value,) in rows:
        plain.add_metric(labels, value)
    return plain
