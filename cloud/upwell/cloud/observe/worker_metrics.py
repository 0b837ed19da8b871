"""Combines the counts of several worker processes: each reports once a second, and one process adds them up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from upwell.cloud.observe.metric_families import FAMILIES, Labels, Snapshot, counted, merged
from upwell.shared.platform.background_thread import BackgroundThread

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
