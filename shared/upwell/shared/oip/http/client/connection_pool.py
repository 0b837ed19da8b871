"""The idle connections of an HTTP client, kept for its next calls."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress

from upwell.shared.oip.http.client.connection import HttpConnection

CONNECT_S = 3.0
"""Time limit for connecting, including proxy and TLS handshake."""


MOST_IDLE = 8
"""Maximum number of idle connections kept."""

IDLE_S = 50.0
"""Idle time after which a connection is closed: proxies and load balancers close idle ones after a minute."""


class Pool:
    """The idle connections of a client, the latest used first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[HttpConnection, ssl.SSLContext | None, float]] = []
        self._closed = False

    def put(self, wire: HttpConnection, context: ssl.SSLContext | None) -> bool:
        """Keep a connection made with `context`; returns False if the caller must close it instead."""
        try:  # no keepalive probes on idle connections
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        except OSError:  # it was just lost
            return False
        with self._lock:
            if self._closed or len(self._idle) >= MOST_IDLE:
                return False
            self._idle.append((wire, context, time.monotonic()))
            return True

    def take(self, context: ssl.SSLContext | None) -> HttpConnection | None:
        """A connection made with the same context that seems alive, or None. Others are closed."""
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
        """Close all connections, and keep none from now on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for wire, _, _ in idle:
            wire.close()
