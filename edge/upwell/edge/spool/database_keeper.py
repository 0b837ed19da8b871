"""The thread that owns the database: it runs queued work in one transaction, and reports when it is on disk."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # differs from the built-in class before 3.11
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from upwell.edge.spool.open_database import REOPEN_S, DatabaseHealth, is_damage, set_aside
from upwell.edge.spool.spool_store import TransactionalStore
from upwell.edge.spool.spooled_request import SpoolUnavailable
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.system_clock import ForwardClock

T = TypeVar("T")
StoreT = TypeVar("StoreT", bound=TransactionalStore)

EXPIRE_S = 60.0
"""How often expired cases are looked for."""

_GROUP = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    work: Callable[[Any], Any]
    done: Future[Any]
    size_bytes: int


@dataclass(frozen=True)
class KeptDatabase(Generic[StoreT]):
    """The database called `name` at `path`: how to open it, its counters, and the consequence of losing it."""

    name: str
    path: Path
    open: Callable[[Path], StoreT]
    count: Callable[[Mapping[str, int]], None]
    loss: str


class Keeper(Generic[StoreT]):
    """Runs work on a store in order, with group commit. Thread-safe.

    Disk errors are never raised here: work fails with `SpoolUnavailable`, and the database is reopened later. A damaged
    one is set aside and replaced.
    """

    def __init__(self, database: KeptDatabase[StoreT]) -> None:
        self._database = database
        self._path = database.path
        self._news = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._closing = False
        self._store: StoreT | None = None
        self._clock = ForwardClock(0.0, time.time(), time.monotonic())
        self._reopen_s = 0.0
        self._expire_s = 0.0
        self._health = DatabaseHealth(database.name, database.path, database.loss)
        self._thread = BackgroundThread(f"{database.name}-keeper", self._run, lambda: self._closing)
        self._thread.start()

    def submit(self, work: Callable[[StoreT], T], size_bytes: int = 0) -> Future[T]:
        """Queue `work`, which takes `size_bytes` of memory until it is done; the result comes once it is on disk.

        The future's error is `SpoolUnavailable`, or what `work` raised.
        """
        done: Future[T] = Future()
        with self._news:
            if self._closing:
                done.set_exception(SpoolUnavailable(f"the {self._database.name} is closed"))
                return done
            self._jobs.append(_Job(work, done, size_bytes))
            self._waiting_bytes += size_bytes
            self._news.notify_all()
        return done

    def ask(self, work: Callable[[StoreT], T], timeout_s: float | None = None) -> T:
        """Run `work` and wait for it. Raises `SpoolUnavailable`, also if that takes longer than `timeout_s`."""
        try:
            return self.submit(work).result(timeout_s)
        except FutureTimeout:
            raise SpoolUnavailable(f"{self._path} does not answer in time") from None

    @property
    def waiting_bytes(self) -> int:
        """Memory taken by queued work."""
        return self._waiting_bytes

    @property
    def problem(self) -> str:
        """Why nothing can be written now; empty if it can."""
        return self._health.problem

    def now_s(self) -> float:
        """The time on the spool's clock, which starts from the data on disk; valid only within or after work."""
        return self._clock.at(time.monotonic())

    def close(self) -> None:
        """Run the queued work and close the database. Calling it twice is harmless."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._jobs or self._closing, EXPIRE_S)
                group = [self._jobs.popleft() for _ in range(min(_GROUP, len(self._jobs)))]
                if not group and self._closing:
                    break
            try:
                self._serve(group or [_Job(lambda _: None, Future(), 0)])  # expired cases must go even without requests
                self._try_to_write()
            finally:
                with self._news:
                    self._waiting_bytes -= sum(job.size_bytes for job in group)
        if self._store is not None:
            self._store.close()

    def _try_to_write(self) -> None:
        """See whether what could not be written can be again: it may be days until a case tells."""
        if self._health.may_be_well:
            self._serve([_Job(lambda store: store.write_nothing(), Future(), 0)])

    def _serve(self, group: Sequence[_Job]) -> None:
        try:
            self._do(group)
        except Exception as error:  # noqa: BLE001 (one piece of work must not take the others with it, nor the thread)
            if len(group) > 1 and self._store is not None and not isinstance(error, SpoolUnavailable):
                for job in group:
                    self._serve([job])
                return
            for job in group:
                job.done.set_exception(self._what_happened(error))

    def _do(self, group: Sequence[_Job]) -> None:
        store = self._opened()
        with store.transaction():
            if (now_s := self.now_s()) >= self._expire_s:
                store.expire(now_s)
            before = store.rows_written
            results = [job.work(store) for job in group]
            has_written = store.rows_written > before
        self._database.count(store.counted)
        if now_s >= self._expire_s:
            self._expire_s = now_s + EXPIRE_S
        if has_written:
            self._health.note_written()
        for job, result in zip(group, results, strict=True):
            job.done.set_result(result)

    def _opened(self) -> StoreT:
        """The store, opened if it is time to try. Raises `OSError`, `sqlite3.Error` and `SpoolUnavailable`."""
        if self._store is None:
            if time.monotonic() < self._reopen_s:
                raise SpoolUnavailable(f"{self._path} cannot be used")
            self._reopen_s = time.monotonic() + REOPEN_S
            try:
                self._store = self._database.open(self._path)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._begin_anew(error)
                self._store = self._database.open(self._path)
            self._clock = ForwardClock(self._store.latest_s(), self.now_s(), time.monotonic())
        return self._store

    def _begin_anew(self, error: Exception) -> None:
        store, self._store = self._store, None
        self._reopen_s = 0.0
        if store is not None:
            with contextlib.suppress(sqlite3.Error):  # it is damaged
                store.close()
        set_aside(self._database.name, self._path, error)
        self._database.count({"damaged": 1})

    def _what_happened(self, error: Exception) -> Exception:
        """The error for the caller; a damaged database is replaced by a new one."""
        if not isinstance(error, (sqlite3.Error, OSError, SpoolUnavailable)):
            _log.error("the %s failed", self._database.name, exc_info=error)
            return error
        if isinstance(error, sqlite3.Error) and is_damage(error) and self._store is not None:
            try:
                self._begin_anew(error)
            except (OSError, sqlite3.Error) as second:
                error = second
        self._health.note_failed(error)
        return SpoolUnavailable(f"{self._path}: {error}")
