"""Connections between two requests, kept for the next one."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress

from upwell.shared.oip.http.connections_out import HttpConnection

MOST_IDLE = 8
"""So many are kept; more were of use only in a burst."""

IDLE_S = 50.0
"""One that was not used for so long is closed: proxies and load balancers give theirs up after a minute."""


class Pool:
    """The idle connections of a client, the latest used first. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[HttpConnection, ssl.SSLContext | None, float]] = []
        self._closed = False

    def put(self, wire: HttpConnection, context: ssl.SSLContext | None) -> bool:
        """Keep a connection, made with that context; whether it is kept, and otherwise the caller's to close."""
        try:  # an idle one is not asked for a sign of life
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        except OSError:  # it has just been lost
            return False
        with self._lock:
            if self._closed or len(self._idle) >= MOST_IDLE:
                return False
            self._idle.append((wire, context, time.monotonic()))
            return True

    def take(self, context: ssl.SSLContext | None) -> HttpConnection | None:
        """A connection that was made with the same context and still looks alive, or None. Others are closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                wire, made_with, since_s = self._idle.pop()
            if made_with is context and time.monotonic() - since_s < IDLE_S and wire.is_quiet():
                with suppress(OSError):  # the call will find out
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return wire
            wire.close()

    def close(self) -> None:
        """Close them all, and keep none from now on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for wire, _, _ in idle:
            wire.close()
