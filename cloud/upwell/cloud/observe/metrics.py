"""Every metric of the service, the counters of one process, and the sum of several processes' counts.

Counting takes a few microseconds per request; counts become metrics only when scraped. Each of several workers reports
once a second, and one process adds them up.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.oip.error_statuses import errors_by_status
from upwell.shared.platform.background_thread import BackgroundThread, restarts
from upwell.shared.platform.memory import resident_bytes
from upwell.shared.telemetry.page_server import serve_pages

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

FAMILIES: Mapping[str, Family] = {
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
    "upwell_cloud_model_ready": Family("gauge", "1 if the version is ready in all workers.", _MODEL, across="least"),
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
    "upwell_cloud_worker_deaths": Family("counter", "Workers that died, by the model to blame, if known.", _MODEL),
    "upwell_cloud_traces": Family("counter", "Requests recorded for traces, by outcome.", ("became",)),
}


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


ANONYMOUS = "anonymous"
OTHERS = "others"
MAX_CLIENTS = 1000
"""Clients that are counted by name; all later ones are counted together as `others`."""


@dataclass(frozen=True)
class ModelCounts:
    """The current state of one version of a model; `load_s` is None if it could not be loaded."""

    name: str
    version: str
    is_ready: bool
    waiting: int
    load_s: float | None


@dataclass(slots=True)
class _Served:
    """The counters of one version of a model."""

    answered: int = 0
    request_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    compute_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    rows: Histogram = field(default_factory=lambda: Histogram(ROWS))


@dataclass(slots=True)
class _Client:
    in_bytes: int = 0
    out_bytes: int = 0
    device_s: float = 0.0


@dataclass(frozen=True)
class RequestEnd:
    """How a request ended, by gRPC status. Model and version are empty if they do not exist."""

    model: str
    version: str
    status: str
    took_s: float
    in_bytes: int
    out_bytes: int = 0
    queue_s: float = 0.0


class RequestCounters:
    """All counters under one lock. Thread-safe.

    `models` returns the state of each model, `traces` the outcomes of recorded requests. prometheus-client's own
    counters would cost a call and a lock per number, and its files for several processes far more.
    """

    def __init__(
        self, models: Callable[[], Iterable[ModelCounts]], traces: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._models = models
        self._traces = traces
        self._lock = threading.Lock()
        self._served: dict[tuple[str, str], _Served] = {}
        self._failed: Counter[tuple[str, str, str]] = Counter()
        self._clients: dict[str, _Client] = {}

    def ended(self, client: str, end: RequestEnd) -> None:
        """Count a request."""
        with self._lock:
            if end.status == "OK":
                served = self._of(end.model, end.version)
                served.answered += 1
                served.request_s.add(end.took_s)
                served.queue_s.add(end.queue_s)
            else:
                self._failed[end.model, end.version, end.status] += 1
            used = self._client(client)
            used.in_bytes += end.in_bytes
            used.out_bytes += end.out_bytes

    def ran(self, model: str, version: str, rows: int, compute_s: float, shares: Iterable[tuple[str, int]]) -> None:
        """Count a run of the engine; `shares` gives the rows of each client."""
        with self._lock:
            served = self._of(model, version)
            served.compute_s.add(compute_s)
            served.rows.add(rows)
            for client, part in shares:
                self._client(client).device_s += compute_s * part / max(rows, 1)

    def snapshot(self) -> Snapshot:
        """The current values of all counters."""
        with self._lock:
            counts: dict[str, dict[tuple[str, ...], list[float]]] = {
                "upwell_cloud_requests": {
                    **{(*key, "OK"): [served.answered] for key, served in self._served.items() if served.answered},
                    **{key: [count] for key, count in self._failed.items()},
                },
                "upwell_cloud_error_answers": {(status,): [count] for status, count in errors_by_status().items()},
                "upwell_cloud_thread_restarts": {(thread,): [count] for thread, count in restarts().items()},
                "upwell_cloud_request_seconds": {key: one.request_s.values[:] for key, one in self._served.items()},
                "upwell_cloud_queue_seconds": {key: one.queue_s.values[:] for key, one in self._served.items()},
                "upwell_cloud_compute_seconds": {key: one.compute_s.values[:] for key, one in self._served.items()},
                "upwell_cloud_batch_rows": {key: one.rows.values[:] for key, one in self._served.items()},
                "upwell_cloud_client_bytes": {
                    (client, direction): [size_bytes]
                    for client, used in self._clients.items()
                    for direction, size_bytes in (("in", used.in_bytes), ("out", used.out_bytes))
                },
                "upwell_cloud_client_device_seconds": {
                    (client,): [used.device_s] for client, used in self._clients.items()
                },
            }
        states = [*self._models()]
        return counts | {
            "upwell_cloud_waiting_requests": {(one.name, one.version): [one.waiting] for one in states if one.is_ready},
            "upwell_cloud_model_ready": {(one.name, one.version): [float(one.is_ready)] for one in states},
            "upwell_cloud_model_load_seconds": {
                (one.name, one.version): [one.load_s] for one in states if one.load_s is not None
            },
            "upwell_cloud_cpu_seconds": {(): [time.process_time()]},
            "upwell_cloud_resident_memory_bytes": {(): [resident_bytes()]},
            "upwell_cloud_workers": {(): [1.0]},
            "upwell_cloud_traces": {(became,): [count] for became, count in self._traces().items()},
        }

    def _of(self, model: str, version: str) -> _Served:
        key = model, version
        if key not in self._served:
            self._served[key] = _Served()
        return self._served[key]

    def _client(self, client: str) -> _Client:
        """The client's counters; beyond the limit those that all others share."""
        if client not in self._clients:
            client = client if client == ANONYMOUS or len(self._clients) < MAX_CLIENTS else OTHERS
            return self._clients.setdefault(client, _Client())
        return self._clients[client]


EVERY_S = 1.0
"""Interval of reports. A worker that is killed loses what it counted since its last one."""

_CLOSE_S = 2.0


class Reporter:
    """Passes what `read` returns to `tell` at once, every second and when closed, off the request path.

    If `tell` raises `OSError`, because nobody listens any more, reporting ends.
    """

    def __init__(
        self, read: Callable[[], Snapshot], tell: Callable[[Mapping[str, Any]], None], every_s: float = EVERY_S
    ) -> None:
        self._read = read
        self._tell = tell
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = BackgroundThread("metrics-reporter", self._tell_all, self._end.is_set)
        self._thread.start()

    def close(self) -> None:
        """Report for the last time. May be called twice."""
        self._end.set()
        self._thread.join(_CLOSE_S)

    def _tell_all(self) -> None:
        ends = False
        while True:
            try:
                self._tell(to_wire(self._read()))
            except OSError:
                return
            if ends:
                return
            ends = self._end.wait(self._every_s)


class WorkerMetrics:
    """The combined counts of all workers, including those that have ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # So that both exist from the first scrape on, and the former where no worker serves.
        self._former: Snapshot = {"upwell_cloud_workers": {(): [0.0]}, "upwell_cloud_worker_deaths": {("", ""): [0.0]}}
        self._latest: dict[int, Snapshot] = {}

    def update(self, worker: int, tables: Mapping[str, Any]) -> None:
        """Replace the previous report of a worker."""
        snapshot = from_wire(tables)
        with self._lock:
            self._latest[worker] = snapshot

    def died(self, model: str, version: str) -> None:
        """Count a worker that died while it loaded or ran that version of a model; "" if that is not known."""
        with self._lock:
            self._former = merged([self._former, {"upwell_cloud_worker_deaths": {(model, version): [1.0]}}])

    def ended(self, worker: int) -> None:
        """Keep the counters of a worker that has ended, and drop its gauges."""
        with self._lock:
            self._former = merged([self._former, counted(self._latest.pop(worker, {}))])

    def read(self) -> Sequence[Snapshot]:
        """One snapshot for all workers that have ended, and one for each that runs."""
        with self._lock:
            return [self._former, *self._latest.values()]


def to_wire(snapshot: Snapshot) -> dict[str, list[list[str | float]]]:
    """The snapshot as plain JSON values."""
    return {name: [[*labels, *values] for labels, values in table.items()] for name, table in snapshot.items()}


def from_wire(tables: Mapping[str, Any]) -> Snapshot:
    """The snapshot from its JSON values."""
    return {name: dict(_row(len(FAMILIES[name].labels), row) for row in rows) for name, rows in tables.items()}


def _row(labels: int, row: Sequence[Any]) -> tuple[Labels, list[float]]:
    return tuple(map(str, row[:labels])), [float(value) for value in row[labels:]]


def serve_metrics(address: str, read: Callable[[], Iterable[Snapshot]]) -> str:
    """Serve Prometheus metrics from `read` at `HOST:PORT` until the process ends; returns the page's URL.

    Raises `ConfigError` if it cannot listen.
    """
    registry = CollectorRegistry()
    build = Info("upwell_cloud_build", "The service's version of Upwell; always 1.", registry=registry)
    build.info({"version": package_version("upwell")})
    registry.register(CloudCollector(read))
    where = parse_address(address)
    server = serve_pages(where.host, where.port, registry, "serve.metrics")
    return f"http://{Address(where.host, server.server_port)}/metrics"
