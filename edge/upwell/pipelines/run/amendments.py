"""Late answers of the cloud, brought back to the events that they are about, by id, hours later too."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from upwell.edge.spool.database import is_damage, set_aside
from upwell.edge.spool.item import SpoolClock, SpoolResult

MAX_WAITING = 100_000
"""Cases whose answers are waited for; beyond it the oldest are forgotten."""

MAX_AGE_S = 8 * 86_400.0
"""A spool keeps a case for seven days by default, and its result travels at once."""

_MAX_EARLY = 1000
_MAX_EARLY_BYTES = 16 << 20
_FORGET_EVERY_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WaitingEvent:
    """An event about something that the cloud is still to answer: the row `row` of a case of the model `model`.

    `object` is the object that was asked about, as the event writes it; None where it was the whole frame.
    """

    pipeline: str
    event_id: str
    event: str
    captured_unix_s: float
    model: str
    row: int
    object: Mapping[str, Any] | None


class Amendments:
    """Remembers which events wait for which case. Safe to use from many threads.

    `path` is an SQLite file, or None to remember for as long as the process lives. A damaged one is moved aside. What
    cannot be written is said once and forgotten: then an event has no amendment, and nothing else changes.

    `emit` is called at least once for each event of a case: once more where the process ended before it was noted.
    """

    def __init__(self, path: Path | None, emit: Callable[[WaitingEvent, SpoolResult], None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._early: OrderedDict[str, SpoolResult] = OrderedDict()
        self._early_bytes = 0
        self._has_failed = False
        self._forget_s = 0.0
        self._connection = self._opened(path)
        (latest_s,) = self._connection.execute("SELECT coalesce(max(kept_wall_s), 0) FROM waiting").fetchone()
        # A device without a battery wakes in 1970: what it keeps then must not be old once it learns the time.
        self._clock = SpoolClock(latest_s, time.time(), time.monotonic())

    def wait_for(self, spool_id: str, event: WaitingEvent) -> None:
        """Have this event amended when the case is answered, which it may be already."""
        with self._lock:
            early = self._early.get(spool_id)
            if early is None:
                self._write(spool_id, event)
        if early is not None:
            self._emit(event, early)

    def take(self, result: SpoolResult) -> None:
        """Amend the events of this case."""
        if result.kind != "spool":
            return
        with self._lock:
            events = self._read(result.spool_id)
            self._keep_early(result)
        for event in events.values():
            self._emit(event, result)
        if events:
            with self._lock:
                self._forget(events)

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
                        set_aside("list of events that wait for the cloud", path, error)
                        return _open(path)
                except (sqlite3.Error, OSError) as second:
                    self._note_failure(second)
                else:
                    self._note_failure(error)
            except OSError as error:
                self._note_failure(error)
        return _open(None)

    def _keep_early(self, result: SpoolResult) -> None:
        """An event of the same frame or track may be on its way."""
        former = self._early.pop(result.spool_id, None)
        self._early[result.spool_id] = result
        self._early_bytes += len(result.answer) - (0 if former is None else len(former.answer))
        while len(self._early) > _MAX_EARLY or (len(self._early) > 1 and self._early_bytes > _MAX_EARLY_BYTES):
            _, oldest = self._early.popitem(last=False)
            self._early_bytes -= len(oldest.answer)

    def _write(self, spool_id: str, event: WaitingEvent) -> None:
        now_s = self._clock.at(time.monotonic())
        try:
            with self._connection:
                row = (spool_id, now_s, json.dumps(asdict(event)))
                self._connection.execute("INSERT INTO waiting VALUES (?, ?, ?)", row)
                self._connection.execute(
                    "DELETE FROM waiting WHERE rowid <= (SELECT max(rowid) FROM waiting) - ?", (MAX_WAITING,)
                )
                if now_s >= self._forget_s:  # it looks at every row
                    self._forget_s = now_s + _FORGET_EVERY_S
                    self._connection.execute("DELETE FROM waiting WHERE kept_wall_s < ?", (now_s - MAX_AGE_S,))
        except sqlite3.Error as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        if not self._has_failed:
            _log.warning("which events wait for the cloud cannot be written, so they are not amended: %s", error)
        self._has_failed = True

    def _read(self, spool_id: str) -> dict[int, WaitingEvent]:
        """The events that wait for the case, by the number of their row."""
        try:
            with closing(
                self._connection.execute("SELECT rowid, body FROM waiting WHERE spool_id = ?", (spool_id,))
            ) as found:
                return {row: WaitingEvent(**json.loads(body)) for row, body in found}
        except (sqlite3.Error, TypeError, ValueError) as error:  # another version may have written them
            _log.warning("which events wait for the cloud cannot be read: %s", error)
            return {}

    def _forget(self, rows: Iterable[int]) -> None:
        try:
            with self._connection:
                self._connection.executemany("DELETE FROM waiting WHERE rowid = ?", [(row,) for row in rows])
        except sqlite3.Error as error:
            _log.warning("which events no longer wait for the cloud cannot be written: %s", error)


def _open(path: Path | None) -> sqlite3.Connection:
    """The database. Raises `sqlite3.Error` and `OSError`."""
    connection = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False, timeout=5.0)
    try:
        if path is not None:
            path.chmod(0o600)
            # A flush of the disk for each event is too dear for what a power cut alone would cost: late answers.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS waiting"
                " (spool_id TEXT NOT NULL, kept_wall_s REAL NOT NULL, body TEXT NOT NULL)"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS by_case ON waiting (spool_id)")
    except BaseException:  # whatever it is, the file does not stay open
        connection.close()
        raise
    return connection
