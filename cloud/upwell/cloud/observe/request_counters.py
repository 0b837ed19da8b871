"""The counters of requests in one process, and added up over several.

Counting costs a few microseconds per request; counters are turned into metrics only when scraped. Each worker reports
once a second, and one process adds them up.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from upwell.cloud.observe.metric_families import FAMILIES, ROWS, SECONDS, Histogram, Labels, Snapshot, counted, merged
from upwell.shared.oip.error_statuses import errors_by_status
from upwell.shared.platform.background_thread import BackgroundThread, restarts
from upwell.shared.platform.process import resident_bytes

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
        self._former: Snapshot = {}
        self._latest: dict[int, Snapshot] = {}

    def update(self, worker: int, tables: Mapping[str, Any]) -> None:
        """Replace the previous report of a worker."""
        snapshot = from_wire(tables)
        with self._lock:
            self._latest[worker] = snapshot

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
