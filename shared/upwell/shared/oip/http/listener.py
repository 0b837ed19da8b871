"""One listening socket: cheroot's server around a socket, a pool and an application of ours."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from cheroot.connections import ConnectionManager
from cheroot.server import HTTPServer

from upwell.shared.oip.http.application import Application
from upwell.shared.oip.http.connections import MAX_HEADER_BYTES, Connection
from upwell.shared.oip.http.departures import Departures
from upwell.shared.oip.http.tls import TlsAdapter
from upwell.shared.oip.http.workers import Workers

MAX_IDLE = 1000
"""So many connections may be open without a request; beyond it the ones idle for the longest make room."""

IDLE_CONNECTION_S = 75
"""Longer than proxies keep theirs by default, so that it is they who close."""

_BACKLOG = 128
_EXPIRY_EVERY_S = 0.25

_log = logging.getLogger(__name__)


class Listener(HTTPServer):
    """Accepts connections on one socket and hands those with something to read to `workers`."""

    ConnectionClass = Connection
    timeout = IDLE_CONNECTION_S
    expiration_interval = _EXPIRY_EVERY_S
    max_request_header_size = MAX_HEADER_BYTES

    def __init__(
        self,
        listening: socket.socket,
        application: Application,
        workers: Workers,
        departures: Departures,
        tls: TlsAdapter | None,
    ) -> None:
        super().__init__(listening.getsockname()[:2] if listening.family != socket.AF_UNIX else "unix", None, 1)
        self.application = application
        self.departures = departures
        self.requests = workers
        self.ssl_adapter = tls
        self.socket = listening
        self._thread = threading.Thread(target=self.serve, name="http-listener", daemon=True)

    def begin(self) -> None:
        """Accept from now on, in a thread of its own."""
        # cheroot's own preparation would take over any socket that systemd passed for something else.
        self.socket.settimeout(1)
        self.socket.listen(_BACKLOG)
        self._connections = _Idle(self)
        self.ready = True
        self._thread.start()

    def serve(self) -> None:
        """Accept and watch until `end`."""
        while self.ready:
            try:
                self._connections.run(self.expiration_interval)
            except OSError as error:
                if self.ready:
                    _log.error("cannot accept connections: %s", error)
                    time.sleep(_EXPIRY_EVERY_S)  # too few descriptors, as a rule: do not spin

    def end(self) -> None:
        """Accept no more and close the idle connections; those in work are closed when they are answered."""
        self.ready = False
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        self._connections.stop()
        self._thread.join()
        self.socket.close()
        self._connections.close()

    def process_conn(self, conn: Connection) -> None:
        """Let a thread serve it, but for a new one: a thread per silent client would soon be all of them."""
        if conn.is_new:
            conn.is_new = False
            self._connections.make_room()
            self._connections.put(conn)
        else:
            self.requests.put(conn)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Log as the rest of the program does. What a client can bring about at will is not worth a line."""
        _log.log(level if level >= logging.ERROR else logging.DEBUG, "%s", msg, exc_info=traceback)


class _Idle(ConnectionManager):
    """The connections without a request, of which there are never more than `MAX_IDLE`."""

    _selector: Any

    def make_room(self) -> None:
        """Close the tenth that has been idle for the longest, where there are too many."""
        if len(self._selector) <= MAX_IDLE:
            return
        idle = [
            (conn.last_used, descriptor, conn)
            for descriptor, conn in self._selector.connections
            if conn is not self.server
        ]
        for _, descriptor, conn in sorted(idle, key=lambda one: one[:2])[: MAX_IDLE // 10]:
            self._selector.unregister(descriptor)
            conn.close()
