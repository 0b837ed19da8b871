"""Counts of each model since the server began, as in Triton's statistics extension."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from upwell.shared.value_classes import value_class


@value_class
class Duration:
    """How often something happened, and its total time."""

    count: int = 0
    total_s: float = 0.0

    def __add__(self, other: Duration) -> Duration:
        """The sum of both."""
        return Duration(self.count + other.count, self.total_s + other.total_s)


@value_class
class RequestTimes:
    """The times of one answered request; `compute_s` is that of its whole batch, which had `batch_rows` rows."""

    total_s: float
    queue_s: float = 0.0
    pre_s: float = 0.0
    compute_s: float = 0.0
    post_s: float = 0.0
    batch_rows: int = 0


@value_class
class BatchTimes:
    """The times of the `runs` runs with one number of rows, and those of their requests before and after the run."""

    runs: int = 0
    compute_s: float = 0.0
    pre_s: float = 0.0
    post_s: float = 0.0

    def __add__(self, other: BatchTimes) -> BatchTimes:
        """The sum of both."""
        return BatchTimes(
            self.runs + other.runs,
            self.compute_s + other.compute_s,
            self.pre_s + other.pre_s,
            self.post_s + other.post_s,
        )


@value_class
class ModelStatistics:
    """The counts of one version of a model. All durations but `failure` are of answered requests.

    `rows` counts the rows that ran and `runs` the runs of the engine; a run has the rows of one or more requests.
    `batches` has the times of the runs by number of rows. `last_unix_ms` is 0 before the first run.
    """

    model: str
    version: str
    last_unix_ms: int = 0
    rows: int = 0
    runs: int = 0
    success: Duration = Duration()
    failure: Duration = Duration()
    queue: Duration = Duration()
    pre: Duration = Duration()
    compute: Duration = Duration()
    post: Duration = Duration()
    batches: Mapping[int, BatchTimes] = field(default_factory=dict)

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        """The sum of the counts of two processes for the same version."""
        sizes = sorted({*self.batches, *other.batches})
        return ModelStatistics(
            self.model,
            self.version,
            max(self.last_unix_ms, other.last_unix_ms),
            self.rows + other.rows,
            self.runs + other.runs,
            self.success + other.success,
            self.failure + other.failure,
            self.queue + other.queue,
            self.pre + other.pre,
            self.compute + other.compute,
            self.post + other.post,
            {size: self.batches.get(size, BatchTimes()) + other.batches.get(size, BatchTimes()) for size in sizes},
        )


def added(tables: Iterable[Iterable[ModelStatistics]]) -> list[ModelStatistics]:
    """The counts of several processes, by model and version."""
    whole: dict[tuple[str, str], ModelStatistics] = {}
    for table in tables:
        for one in table:
            key = one.model, one.version
            whole[key] = whole[key] + one if key in whole else one
    return [whole[key] for key in sorted(whole)]


MAX_SIZES = 256
"""Numbers of rows whose runs are counted by themselves: callers could otherwise add any number of them."""


class _Counts:
    """The counts of one version, as plain numbers: an object per request would cost as much as its lock."""

    __slots__ = ("batches", "last_unix_s", "numbers", "rows", "runs")

    def __init__(self) -> None:
        self.numbers = [0.0] * 8
        """Answered: count, total; failed: count, total; then queue, pre, compute and post of answered requests."""
        self.rows = self.runs = 0
        self.batches: dict[int, list[Any]] = {}
        self.last_unix_s = 0.0

    def told(self, model: str, version: str) -> ModelStatistics:
        answered, total_s, failed, failed_s, queue_s, pre_s, compute_s, post_s = self.numbers
        count = int(answered)
        return ModelStatistics(
            model,
            version,
            last_unix_ms=int(1e3 * self.last_unix_s),
            rows=self.rows,
            runs=self.runs,
            success=Duration(count, total_s),
            failure=Duration(int(failed), failed_s),
            queue=Duration(count, queue_s),
            pre=Duration(count, pre_s),
            compute=Duration(count, compute_s),
            post=Duration(count, post_s),
            batches={rows: BatchTimes(*self.batches[rows]) for rows in sorted(self.batches)},
        )


class StatisticsCounter:
    """Counts for all models of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], _Counts] = {}

    def answered(self, model: str, version: str, times: RequestTimes) -> None:
        """Count an answered request."""
        with self._lock:
            counts = self._of(model, version)
            numbers = counts.numbers
            numbers[0] += 1
            numbers[1] += times.total_s
            numbers[4] += times.queue_s
            numbers[5] += times.pre_s
            numbers[6] += times.compute_s
            numbers[7] += times.post_s
            if times.batch_rows in counts.batches:
                batch = counts.batches[times.batch_rows]
                batch[2] += times.pre_s
                batch[3] += times.post_s

    def failed(self, model: str, version: str, took_s: float) -> None:
        """Count a failed request. Only for models that exist, since a caller could name thousands."""
        with self._lock:
            numbers = self._of(model, version).numbers
            numbers[2] += 1
            numbers[3] += took_s

    def ran(self, model: str, version: str, rows: int, compute_s: float, now_unix_s: float) -> None:
        """Count a run of the engine."""
        with self._lock:
            counts = self._of(model, version)
            counts.rows += rows
            counts.runs += 1
            counts.last_unix_s = now_unix_s
            if rows in counts.batches or len(counts.batches) < MAX_SIZES:
                batch = counts.batches.setdefault(rows, [0, 0.0, 0.0, 0.0])
                batch[0] += 1
                batch[1] += compute_s

    def read(self, versions: Iterable[tuple[str, str]]) -> Sequence[ModelStatistics]:
        """The counts of these models and versions; zeros if nothing was counted yet."""
        with self._lock:
            return [self._counts.get(key, _NOTHING).told(*key) for key in versions]

    def _of(self, model: str, version: str) -> _Counts:
        key = model, version
        if key not in self._counts:
            self._counts[key] = _Counts()
        return self._counts[key]


_NOTHING = _Counts()
