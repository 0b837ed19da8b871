"""Clients that leave while their request is worked on: noticed, so that the work can be dropped.

On Linux, where the kernel tells of it without a read; elsewhere a call lasts until its deadline.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from upwell.shared.oip.dataplane import Signal
from upwell.shared.platform.background_thread import BackgroundThread


class DisconnectWatch:
    """One thread that waits for the ends of the connections that are watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[int, Signal] = {}
        self._end, self._wake = socket.socketpair()
        self._thread: threading.Thread | None = None
        if sys.platform == "linux":
            self._epoll = select.epoll()
            self._epoll.register(self._end.fileno(), select.EPOLLIN)
            self._thread = BackgroundThread("http-departures", self._run)
            self._thread.start()

    @contextmanager
    def watched(self, descriptor: int, left: Signal) -> Iterator[None]:
        """Set `left` when the other side of that socket closes it, or its own half of it."""
        if sys.platform != "linux":
            yield
            return
        with self._lock:
            self._events[descriptor] = left
        # Once only: an end stays an end, and would be told again and again.
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        finally:
            self._epoll.unregister(descriptor)
            with self._lock:
                del self._events[descriptor]

    def close(self) -> None:
        """End the thread. No call may be watched any more."""
        self._wake.close()
        if self._thread is not None:
            self._thread.join()
        self._end.close()

    def _run(self) -> None:
        if sys.platform != "linux":
            return
        while True:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._end.fileno():
                    self._epoll.close()
                    return
                with self._lock:
                    left = self._events.get(descriptor)
                if left is not None:
                    left.set()
