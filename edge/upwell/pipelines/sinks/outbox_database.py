"""Shares the outbox's database between threads: reopens it when the disk is back, replaces it if it is damaged."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from upwell.edge.spool.open_database import REOPEN_S, DatabaseHealth, is_damage, open_database, set_aside
from upwell.pipelines.sinks.outbox_store import SCHEMA, OutboxStore, Outcome
from upwell.shared.errors import UpwellError
from upwell.shared.platform.system_clock import ForwardClock

T = TypeVar("T")

_EXPIRE_S = 10.0
_GROUP = 64
_log = logging.getLogger(__name__)


class OutboxUnavailable(UpwellError):
    """The disk is full, read-only or gone, or the outbox is closed."""


@dataclass(frozen=True)
class OutboxLimits:
    """How much an outbox holds, and how often its sinks are retried.

    Messages beyond `limit_bytes` or `max_age_s` are dropped, the oldest first. The n-th failure of a sink in a row is
    followed by a pause of `first_pause_s`·2ⁿ⁻¹ (at most `longest_pause_s`), times a random factor in [0.5, 1].
    """

    limit_bytes: int = 256 << 20
    max_age_s: float = 7 * 86400.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0


class _Job(Generic[T]):
    """A piece of work and its result. If `durable`, its effects are on disk when it ends."""

    def __init__(self, work: Callable[[OutboxStore], T], durable: bool) -> None:
        self.work = work
        self.durable = durable
        self.is_done = False
        self._result: T | None = None
        self._error: Exception | None = None

    def run(self, store: OutboxStore) -> None:
        """Do the work within the transaction, which may still fail."""
        self._result = self.work(store)

    def end(self, error: Exception | None = None) -> None:
        """Record how the transaction ended."""
        self._error, self.is_done = error, True

    def result(self) -> T:
        """The result of the work. Raises the error if it failed."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # `run` has set it


class OutboxDatabase:
    """Does work on the outbox's store, in order, many pieces per transaction. Thread-safe.

    It has no thread of its own: a caller does all the work that waits, including that of others. So concurrent puts
    share one flush of the disk (group commit), and a frequent caller does not starve the others.
    """

    def __init__(
        self,
        path: Path,
        sinks: Mapping[str, Sequence[str]],
        shown: Collection[str],
        limits: OutboxLimits,
        others: Collection[str] = (),
    ) -> None:
        self._path = path
        self._sinks, self._others = sinks, others
        self.shown = shown
        """The names of the sinks that get pictures."""
        self._limits = limits
        self._jobs: deque[_Job[Any]] = deque()
        self._lock = threading.Lock()
        self._store: OutboxStore | None = None
        self._closed = False
        self._clock = ForwardClock(0.0, time.time(), time.monotonic())
        self._reopen_s = 0.0
        self._expire_s = 0.0
        self._health = DatabaseHealth("outbox", path, "events are lost until it can")
        self._sequences: dict[str, int] = {}
        self._sequence_lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.counted = threading.Condition()
        """Notified when a count has changed."""
        self.epoch = 0
        """Rises when the database is replaced, which makes message numbers from before invalid. Read it within work."""
        with contextlib.suppress(OutboxUnavailable):
            self.ask(lambda _: None)

    def next_sequence(self, pipeline: str) -> int:
        """The next sequence number of the pipeline. Numbers rise, also over restarts."""
        with self._sequence_lock:
            # If nothing could be read, numbers go on above all those given out before.
            last = self._sequences.get(pipeline)
            number = self._sequences[pipeline] = (_high_sequence() if last is None else last) + 1
            return number

    def now_s(self) -> float:
        """The outbox's clock, by which ages count. Only for use within work."""
        return self._clock.at(time.monotonic())

    @property
    def problem(self) -> str:
        """Why nothing can be stored now; empty if it can."""
        return self._health.problem

    def ask(self, work: Callable[[OutboxStore], T], *, durable: bool = False) -> T:
        """Have `work` done, and return its result once the transaction has ended.

        If it is not `durable`, a power cut may lose it, but not a kill of the process. Raises `OutboxUnavailable`.
        """
        job = _Job(work, durable)
        self._jobs.append(job)
        with self._lock:
            while not job.is_done:  # the former holder of the lock may have done it
                if time.monotonic() >= self._expire_s:
                    self._expire_s = time.monotonic() + _EXPIRE_S
                    self._jobs.appendleft(
                        _Job(lambda store: store.expire(self.now_s() - self._limits.max_age_s), False)
                    )
                group = [self._jobs.popleft() for _ in range(min(_GROUP, len(self._jobs)))]
                try:
                    self._serve(group)
                finally:  # this caller may be interrupted while it does the others' work
                    for one in group:
                        if not one.is_done:
                            one.end(OutboxUnavailable("interrupted"))
        return job.result()

    def change(self, sinks: Mapping[str, Sequence[str]], shown: Collection[str]) -> None:
        """Have these sinks, by pipeline, from now on. Messages that wait for a removed one are dropped."""
        self.shown, self._sinks = shown, sinks
        with contextlib.suppress(OutboxUnavailable):  # applied with the next put that the disk takes
            self.ask(lambda _: None, durable=True)

    def count(self, sinks: Iterable[str], name: str, number: int = 1) -> None:
        """Count an event that is not on disk."""
        self._tally({(sink, name): number for sink in sinks})

    def count_of(self, sink: str, name: str) -> int:
        """How often this outcome has occurred for the sink."""
        with self.counted:
            return self._counts[sink, name]

    def waiting(self, sink: str) -> int:
        """The number of messages that the sink has not taken yet."""
        with self.counted:
            come = self._counts[sink, "resumed"] + self._counts[sink, "put"]
            return come - sum(self._counts[sink, name] for name in (*get_args(Outcome), "damaged"))

    def close(self) -> None:
        """Close the database. Later work fails."""
        with self._lock:
            self._closed = True
            self._close_store()

    def _serve(self, group: Sequence[_Job[Any]], *, may_begin_anew: bool = True) -> None:
        try:
            self._do(group)
        except Exception as error:  # noqa: BLE001 (one piece of work must not take the others with it)
            if may_begin_anew and self._began_anew(error):
                self._serve(group, may_begin_anew=False)
            elif len(group) > 1 and self._store is not None:
                for job in group:
                    self._serve([job])
            else:
                problem = self._what_happened(error)
                for job in group:
                    job.end(problem)

    def _do(self, group: Sequence[_Job[Any]]) -> None:
        store = self._opened()
        is_durable = any(job.durable for job in group)
        with store.transaction(durable=is_durable):
            purged = self._purged(store) if store.is_changed else {}
            gone = store.change(self._sinks) if is_durable and store.sinks is not self._sinks else {}
            for job in group:
                job.run(store)
        store.is_changed = False
        self._tally(purged)
        self._tally(store.counted)
        _tell_of(gone)
        for job in group:
            job.end()
        if not is_durable:  # no put waits for it
            with contextlib.suppress(sqlite3.Error):  # next time
                store.shrink()
        else:
            self._health.note_written()

    def _purged(self, store: OutboxStore) -> dict[tuple[str, str], int]:
        """The messages that another process has deleted, by sink, in the form of `counted`."""
        there = store.waiting_by_sink()
        gone = {sink: self.waiting(sink) - there.get(sink, 0) for names in self._sinks.values() for sink in names}
        return {(sink, "removed"): number for sink, number in gone.items() if number > 0}

    def _opened(self) -> OutboxStore:
        """The store, opened if it is time to. Raises `OSError`, `sqlite3.Error` and `OutboxUnavailable`."""
        if self._store is not None:
            return self._store
        if self._closed or time.monotonic() < self._reopen_s:
            raise OutboxUnavailable(f"{self._path} cannot be used")
        self._reopen_s = time.monotonic() + REOPEN_S
        try:
            return self._open(first_sequence=0)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return self._begin_anew(error)

    def _open(self, first_sequence: int) -> OutboxStore:
        connection = open_database(self._path, SCHEMA)
        store = OutboxStore(connection, self._sinks, self._limits.limit_bytes, self._free_bytes, self._others)
        try:
            with store.transaction(durable=True):
                beginning = store.begin(first_sequence)
                latest_s = store.latest_s()
        except BaseException:  # the file must not stay open, whatever the error
            store.close()
            raise
        self._store = store
        self._clock = ForwardClock(latest_s, self.now_s(), time.monotonic())
        with self._sequence_lock:
            for pipeline, last in beginning.sequences.items():
                self._sequences[pipeline] = max(last, self._sequences.get(pipeline, 0))
        self._tally({(sink, "resumed"): number for sink, number in beginning.waiting.items()})
        _tell_of(beginning.gone)
        return store

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._path.parent).free

    def _begin_anew(self, error: Exception) -> OutboxStore:
        """Move a damaged database aside. Sequences go on above its own, which receivers have seen."""
        self._close_store()
        self._reopen_s = 0.0
        self.epoch += 1
        names = {name for names in self._sinks.values() for name in names}
        self._tally({(name, "damaged"): self.waiting(name) for name in names})
        set_aside("outbox", self._path, error)
        return self._open(_high_sequence())

    def _began_anew(self, error: Exception) -> bool:
        """Whether the database was damaged and has been replaced."""
        if not isinstance(error, sqlite3.Error) or not is_damage(error) or self._store is None:
            return False
        try:
            self._begin_anew(error)
        except (OSError, sqlite3.Error) as second:
            self._health.note_failed(second)
            return False
        return True

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(sqlite3.Error):  # on a full disk the log stays, and is read at the next start
                store.close()

    def _what_happened(self, error: Exception) -> Exception:
        """The error for the caller."""
        if not isinstance(error, (sqlite3.Error, OSError, OutboxUnavailable)):
            return error  # a defect, raised to the caller
        if not self._closed:
            self._health.note_failed(error)
        return OutboxUnavailable(f"{self._path}: {error}")

    def _tally(self, counted: Mapping[tuple[str, str], int]) -> None:
        if counted:
            with self.counted:
                self._counts.update(counted)
                self.counted.notify_all()


def _tell_of(gone: Mapping[str, int]) -> None:
    for sink, number in gone.items():
        if number:
            _log.warning("%d waiting events are dropped, since the sink %s was removed", number, sink)


def _high_sequence() -> int:
    """A number above all those given out so far."""
    return int(time.time() * 1e3)
