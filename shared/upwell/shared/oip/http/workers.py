"""The threads that answer requests, shared by all listeners of a server."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Protocol

from upwell.shared.oip.grpc.slow_client_guard import SlowClientGuard

IDLE_S = 10.0
"""Threads that were too many for so long end, each with the memory that it holds."""

_log = logging.getLogger(__name__)


class Work(Protocol):
    """A connection on which something has come."""

    def serve_once(self) -> None:
        """Answer what has come, and give the connection back or close it."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def address(self) -> str:
        """Where its client is, whatever the port."""
        ...

    def break_off(self) -> None:
        """End what a thread waits for of its client, from another thread."""
        ...


class Workers:
    """At most `count` threads, started as they are needed, and a queue of at most `max_waiting` connections.

    Those that were not needed for `IDLE_S` end. The queue hands out connections in turns, so that under any load each
    gets one now and then: what counts is how many of all were idle at every moment of that time.

    It has cheroot's interface of a thread pool. The threads are daemons: a handler that does not end cannot keep
    the process from ending.
    """

    min = 0
    """cheroot's number of threads to keep, which nobody reads."""

    def __init__(self, count: int, max_waiting: int) -> None:
        self._count = count
        self.waiting: SlowClientGuard[Work] = SlowClientGuard(
            max(1, count // 2), lambda one: one.address(), lambda one: one.break_off()
        )
        """Whose clients keep a thread waiting: with their handshake, their request, or with reading the answer."""
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        """Threads without a connection, nor one on its way to them."""
        self._unclaimed = 0
        """Connections in the queue for which no thread was idle."""
        self._threads: list[threading.Thread] = []
        self._least_idle = 0
        """The fewest that were idle at one time since `_counted_s`."""
        self._surplus = 0
        """Of those that were in the time before, how many are still to end."""
        self._counted_s = time.monotonic()

    def put(self, connection: Work) -> None:
        """Let a thread serve it soon. A connection too many is closed."""
        waiting = self._queue.qsize()
        if waiting >= self._max_waiting:
            connection.close()
            return
        self._queue.put(connection)
        with self._lock:
            if self._idle > 0:
                self._idle -= 1  # here, since one that has been woken looks idle until it runs
                self._least_idle = min(self._least_idle, self._idle)
            elif len(self._threads) < self._count:
                self._least_idle = self._surplus = 0
                thread = threading.Thread(target=self._run, name=f"http-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            else:
                self._unclaimed += 1

    def has_waiting(self) -> bool:
        """Whether a connection waits for a thread."""
        return not self._queue.empty()

    def stop(self, timeout_s: float) -> bool:
        """Serve what waits and end the threads; whether all have ended within `timeout_s`."""
        for _ in self._threads.copy():  # too many where one ends by itself meanwhile
            self._queue.put(None)
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `stop`; whether all have ended within `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        threads = self._threads.copy()
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while True:
            try:
                connection = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                if self._may_end():
                    return
                continue
            if connection is None:
                return
            try:
                connection.serve_once()
            except Exception:  # noqa: BLE001 (the last resort: a thread that ends would be missed)
                _log.exception("a connection was given up")
                connection.close()
            with self._lock:
                is_awaited = self._unclaimed > 0
                self._unclaimed -= is_awaited
                self._idle += not is_awaited
            if not is_awaited and self._may_end():
                return

    def _may_end(self) -> bool:
        """Whether this thread, which is idle, is one too many; then it is forgotten."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._counted_s >= IDLE_S:
                self._surplus, self._least_idle, self._counted_s = self._least_idle, self._idle, now_s
            if self._surplus == 0 or self._idle == 0:
                return False
            self._surplus -= 1
            self._idle -= 1
            self._least_idle = min(self._least_idle, self._idle)
            self._threads.remove(threading.current_thread())
            return True
