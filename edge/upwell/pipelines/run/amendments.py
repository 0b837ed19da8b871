"""Late answers of the cloud, brought back to the events that they are about, by id, hours later too."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from upwell.edge.spool.item import SpoolResult

MAX_WAITING = 100_000
"""Cases whose answers are waited for; beyond it the oldest are forgotten."""

MAX_AGE_S = 8 * 86_400.0
"""A spool keeps a case for seven days by default, and its result travels at once."""

_MAX_EARLY = 1000
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

    `path` is an SQLite file, or None to remember for as long as the process lives. What cannot be written is said once
    and forgotten: then an event has no amendment, and nothing else changes.
    """

    def __init__(self, path: Path | None, emit: Callable[[WaitingEvent, SpoolResult], None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._early: OrderedDict[str, SpoolResult] = OrderedDict()
        self._has_failed = False
        self._connection = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False, timeout=5.0)
        if path is not None:
            path.chmod(0o600)
        with self._connection:
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS waiting"
                " (spool_id TEXT NOT NULL, kept_wall_s REAL NOT NULL, body TEXT NOT NULL)"
            )
            self._connection.execute("CREATE INDEX IF NOT EXISTS by_case ON waiting (spool_id)")

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
            self._early[result.spool_id] = result  # an event of the same frame or track may be on its way
            if len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)
        for event in events:
            self._emit(event, result)

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        with self._lock:
            self._connection.close()

    def _write(self, spool_id: str, event: WaitingEvent) -> None:
        now_s = time.time()
        try:
            with self._connection:
                row = (spool_id, now_s, json.dumps(asdict(event)))
                self._connection.execute("INSERT INTO waiting VALUES (?, ?, ?)", row)
                self._connection.execute("DELETE FROM waiting WHERE kept_wall_s < ?", (now_s - MAX_AGE_S,))
                self._connection.execute(
                    "DELETE FROM waiting WHERE rowid <= (SELECT max(rowid) FROM waiting) - ?", (MAX_WAITING,)
                )
        except sqlite3.Error as error:
            if not self._has_failed:
                _log.warning("which events wait for the cloud cannot be written, so they are not amended: %s", error)
            self._has_failed = True

    def _read(self, spool_id: str) -> list[WaitingEvent]:
        try:
            with closing(self._connection.execute("SELECT body FROM waiting WHERE spool_id = ?", (spool_id,))) as found:
                bodies = [json.loads(body) for (body,) in found]
            with self._connection:
                self._connection.execute("DELETE FROM waiting WHERE spool_id = ?", (spool_id,))
        except sqlite3.Error as error:
            _log.warning("which events wait for the cloud cannot be read: %s", error)
            return []
        return [WaitingEvent(**body) for body in bodies]
