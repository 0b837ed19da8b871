"""Late answers of the cloud to what an event said, matched by the request's id, as amendments of that event."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from upwell.edge.spool.open_database import is_damage, set_aside
from upwell.edge.spool.result_sinks import TakeLater
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.shared.platform.system_clock import ForwardClock

AMENDMENTS_NAME = "amendments.db"
"""The file in the agent's `state_dir`."""

MAX_WAITING = 100_000
"""Maximum number of cases awaiting answers; beyond it the oldest are dropped."""

MAX_AGE_S = 8 * 86_400.0
"""How long a case waits. A spool keeps it for seven days by default, and its result arrives at once."""

_BOUND_S = 2.0
"""How long a result waits for the pipelines to start before it is postponed."""

_MAX_EARLY = 1000
_MAX_EARLY_BYTES = 16 << 20
_FORGET_EVERY_S = 60.0
_log = logging.getLogger(__name__)


class LateResults:
    """Receives the agent's late results. It exists before the agent, which needs it, and is bound to the pipelines
    later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._take: Callable[[SpoolResult], None] | None = None

    def __call__(self, result: SpoolResult) -> None:
        """Take an answer of the cloud to a stored case. Raises `TakeLater` if no pipeline is there to take it."""
        with self._changed:  # held until it is taken, so that nothing it needs is closed
            self._changed.wait_for(lambda: self._take is not None, _BOUND_S)
            if self._take is None:
                raise TakeLater("the pipelines are not running")
            self._take(result)

    def bind(self, take: Callable[[SpoolResult], None]) -> None:
        """Give all results to `take` from now on."""
        with self._changed:
            self._take = take
            self._changed.notify_all()

    def unbind(self) -> None:
        """Take no more results; later ones are kept for the next start."""
        with self._changed:
            self._take = None


@dataclass(frozen=True)
class WaitingEvent:
    """An event that waits for an answer of the cloud to row `row` of a case of the model `model`.

    `object` is the object that was asked about, as the event writes it; None for the whole frame. `sequence`,
    `direction`, `file` and `media_s` are those of the event.
    """

    pipeline: str
    event_id: str
    event: str
    captured_unix_s: float
    model: str
    row: int
    object: Mapping[str, Any] | None
    sequence: int = 0
    direction: str = ""
    file: str = ""
    media_s: float | None = None


Expected: TypeAlias = tuple[str, WaitingEvent]
"""The id of a case, and an event that waits for it."""


class Amendments:
    """Remembers which events wait for which case. Thread-safe.

    `path` is an SQLite file, or None to remember for as long as the process lives. A damaged file is moved aside. A
    failure to write is logged once, and the event is then never amended; nothing else changes.

    `emit` is called at least once for each event of a case: twice if the process ended before the first call was
    recorded. It returns whether the amendment is stored.
    """

    def __init__(self, path: Path | None, emit: Callable[[WaitingEvent, SpoolResult], bool]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._untold: set[str] = set()
        self._early: OrderedDict[str, SpoolResult] = OrderedDict()
        self._early_bytes = 0
        self._has_failed = False
        self._forget_s = 0.0
        self._connection = self._opened(path)
        (latest_s,) = self._connection.execute("SELECT coalesce(max(kept_wall_s), 0) FROM waiting").fetchone()
        # A device without a battery boots in 1970: what it stores then must not be too old once it learns the time.
        self._clock = ForwardClock(latest_s, time.time(), time.monotonic())

    def expect(self, expected: Sequence[Expected]) -> list[tuple[WaitingEvent, SpoolResult]]:
        """Record events before they are stored, so that a kill in between costs no amendment.

        Returns those whose case is already answered, to be amended at once. `settle` must follow; until then answers
        to the others wait.
        """
        with self._lock:
            answered = [(event, self._early[case]) for case, event in expected if case in self._early]
            waiting = [(case, event) for case, event in expected if case not in self._early]
            self._untold.update(event.event_id for _, event in waiting)
            self._write(waiting)
        return answered

    def settle(self, expected: Sequence[Expected], *, are_kept: bool) -> None:
        """Note that the events of `expect` are stored. If they are not, they wait for nothing."""
        ids = {event.event_id for _, event in expected}
        with self._changed:
            self._untold -= ids
            if not are_kept:
                for case in {case for case, _ in expected}:
                    self._forget(row for row, event in self._read(case).items() if event.event_id in ids)
            self._changed.notify_all()

    def forget_unkept(self, kept: Mapping[str, int]) -> None:
        """Forget the events that were never stored because the process was killed first: those beyond the last
        sequence of their pipeline in `kept`. Must run before any new event is expected.
        """
        with self._lock:
            try:
                rows = self._connection.execute("SELECT rowid, body FROM waiting").fetchall()
                events = [(row, WaitingEvent(**json.loads(body))) for row, body in rows]
            except (sqlite3.Error, TypeError, ValueError):  # reported when an answer makes us read it
                return
            self._forget(row for row, event in events if event.sequence > kept.get(event.pipeline, event.sequence))

    def take(self, result: SpoolResult) -> None:
        """Amend the events of this case. Raises `TakeLater` if an amendment cannot be stored now."""
        if result.kind != "spool":
            return
        with self._changed:
            self._keep_early(result)
            self._changed.wait_for(lambda: not self._untold or not self._is_untold(result.spool_id))
            events = self._read(result.spool_id)
        done = [row for row, event in events.items() if self._emit(event, result)]
        if events:
            with self._lock:
                self._forget(done)
        if len(done) < len(events):
            raise TakeLater("the outbox cannot be written")

    def _is_untold(self, spool_id: str) -> bool:
        return any(event.event_id in self._untold for event in self._read(spool_id).values())

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        with self._lock:
            self._connection.close()

    def _opened(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            try:
                return _open(path)
            except sqlite3.DatabaseError as error:
                try:
                    if is_damage(error):
                        set_aside("list of events waiting for the cloud", path, error)
                        return _open(path)
                except (sqlite3.Error, OSError) as second:
                    self._note_failure(second)
                else:
                    self._note_failure(error)
            except OSError as error:
                self._note_failure(error)
        return _open(None)

    def _keep_early(self, result: SpoolResult) -> None:
        """Remember an answer for an event of the same frame or track that may still be written."""
        former = self._early.pop(result.spool_id, None)
        self._early[result.spool_id] = result
        self._early_bytes += len(result.answer) - (0 if former is None else len(former.answer))
        while len(self._early) > _MAX_EARLY or (len(self._early) > 1 and self._early_bytes > _MAX_EARLY_BYTES):
            _, oldest = self._early.popitem(last=False)
            self._early_bytes -= len(oldest.answer)

    def _write(self, expected: Sequence[Expected]) -> None:
        if not expected:
            return
        now_s = self._clock.at(time.monotonic())
        try:
            with self._connection:
                rows = [(case, now_s, json.dumps(asdict(event))) for case, event in expected]
                self._connection.executemany("INSERT INTO waiting VALUES (?, ?, ?)", rows)
                self._connection.execute(
                    "DELETE FROM waiting WHERE rowid <= (SELECT max(rowid) FROM waiting) - ?", (MAX_WAITING,)
                )
                if now_s >= self._forget_s:  # this scans every row
                    self._forget_s = now_s + _FORGET_EVERY_S
                    self._connection.execute("DELETE FROM waiting WHERE kept_wall_s < ?", (now_s - MAX_AGE_S,))
        except sqlite3.Error as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        if not self._has_failed:
            _log.warning(
                "the list of events waiting for the cloud cannot be written, so they will not be amended: %s", error
            )
        self._has_failed = True

    def _read(self, spool_id: str) -> dict[int, WaitingEvent]:
        """The events that wait for the case, by row number."""
        try:
            with closing(
                self._connection.execute("SELECT rowid, body FROM waiting WHERE spool_id = ?", (spool_id,))
            ) as found:
                return {row: WaitingEvent(**json.loads(body)) for row, body in found}
        except (sqlite3.Error, TypeError, ValueError) as error:  # another version may have written them
            _log.warning("the list of events waiting for the cloud cannot be read: %s", error)
            return {}

    def _forget(self, rows: Iterable[int]) -> None:
        try:
            with self._connection:
                self._connection.executemany("DELETE FROM waiting WHERE rowid = ?", [(row,) for row in rows])
        except sqlite3.Error as error:
            _log.warning("the list of events waiting for the cloud cannot be updated: %s", error)


def _open(path: Path | None) -> sqlite3.Connection:
    """The database. Raises `sqlite3.Error` and `OSError`."""
    connection = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False, timeout=5.0)
    try:
        if path is not None:
            path.chmod(0o600)
            # Flushing the disk for each event costs too much: only a power cut would lose anything, and only late
            # answers.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS waiting"
                " (spool_id TEXT NOT NULL, kept_wall_s REAL NOT NULL, body TEXT NOT NULL)"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS by_case ON waiting (spool_id)")
    except BaseException:  # the file must not stay open, whatever the error
        connection.close()
        raise
    return connection
