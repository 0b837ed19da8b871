"""What several worker processes count, brought together: each tells it once a second, one process adds it up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from upwell.cloud.observe.families import FAMILIES, Labels, Snapshot, counted, merged
from upwell.shared.platform.background_thread import BackgroundThread

EVERY_S = 1.0
"""So old may be what a worker has told; one that is killed takes what it has counted since with it."""

_CLOSE_S = 2.0


class Reporter:
    """Gives `tell` what `read` gives, now, every second and once more when it is closed. No request waits for it.

    `tell` may raise `OSError` where nobody listens any more; that ends it.
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
        """Tell it for the last time. Calling it twice is harmless."""
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
    """What the workers have counted together, those that have ended included. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._former: Snapshot = {}
        self._latest: dict[int, Snapshot] = {}

    def update(self, worker: int, tables: Mapping[str, Any]) -> None:
        """What a worker has counted by now, in place of what it said before."""
        snapshot = from_wire(tables)
        with self._lock:
            self._latest[worker] = snapshot

    def ended(self, worker: int) -> None:
        """The worker has ended: what it counted stays, what it had does not."""
        with self._lock:
            self._former = merged([self._former, counted(self._latest.pop(worker, {}))])

    def read(self) -> Sequence[Snapshot]:
        """One snapshot of all that have ended, and one of each that has not."""
        with self._lock:
            return [self._former, *self._latest.values()]


def to_wire(snapshot: Snapshot) -> dict[str, list[list[str | float]]]:
    """As JSON can hold it."""
    return {name: [[*labels, *values] for labels, values in table.items()] for name, table in snapshot.items()}


def from_wire(tables: Mapping[str, Any]) -> Snapshot:
    """The snapshot again."""
    return {name: dict(_row(len(FAMILIES[name].labels), row) for row in rows) for name, rows in tables.items()}


def _row(labels: int, row: Sequence[Any]) -> tuple[Labels, list[float]]:
    return tuple(map(str, row[:labels])), [float(value) for value in row[labels:]]
