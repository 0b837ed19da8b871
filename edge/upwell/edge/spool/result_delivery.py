"""Delivering results: a thread for each sink, and the signal on which readers of results wait."""

from __future__ import annotations

import logging
import threading

from upwell.edge.spool.database_keeper import Keeper
from upwell.edge.spool.result_sinks import Sink
from upwell.edge.spool.spool_store import Store
from upwell.edge.spool.spooled_request import SpoolTally, SpoolUnavailable

BATCH_BYTES = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_log = logging.getLogger(__name__)


class News:
    """Signals waiting threads that there is something new, or that it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False

    def publish(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wake all waiting threads; later waits return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def count(self) -> int:
        """The number of publications. Read it before looking for news, so that none is missed."""
        return self._count

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until there is more than `seen`, it is closed, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > seen or self._closed, timeout_s)

    def pause(self, timeout_s: float) -> None:
        """Wait until it is closed or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout_s)


class Deliverer:
    """Delivers each result to one sink, in order, at least once, continuing after a restart."""

    def __init__(self, keeper: Keeper[Store], sink: Sink, news: News, tally: SpoolTally) -> None:
        self._keeper = keeper
        self._sink = sink
        self._news = news
        self._tally = tally
        self._cursor: int | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._is_well = True
        self._thread = threading.Thread(target=self._run, name="spool-sink", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, after the news closes and the sink returns."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._news.is_closed:
            seen = self._news.count
            try:
                if self._deliver():
                    self._is_well = True
                else:
                    self._news.wait(seen, _LONGEST_PAUSE_S)
                self._pause_s = _FIRST_PAUSE_S
            except SpoolUnavailable:
                self._news.pause(_FIRST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 (the boundary to any sink: it is given the same again later)
                self._tally.add({"failed_deliveries": 1})
                if self._is_well or not isinstance(error, OSError):  # a full disk is logged once
                    log = _log.warning if isinstance(error, OSError) else _log.exception
                    log("cannot deliver results to %s: %s", self._sink.name, error)
                self._is_well = False
                self._news.pause(self._pause_s)
                self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def _deliver(self) -> bool:
        """Deliver new results; returns whether there were any."""
        if self._cursor is None:
            self._cursor = self._beginning()
        since = self._cursor
        results = self._keeper.ask(lambda store: store.results(since, BATCH_BYTES))
        if not results:
            return False
        self._sink.take(results)
        last = self._cursor = results[-1].sequence
        self._tally.add({"delivered": len(results)})
        self._keeper.ask(lambda store: store.set_delivered(self._sink.name, last))
        return True

    def _beginning(self) -> int:
        known = self._sink.start()

        def look(store: Store) -> int:
            # A number beyond the last one belongs to another database.
            return max(store.delivered(self._sink.name), known if known <= store.last_sequence() else 0)

        return self._keeper.ask(look)
