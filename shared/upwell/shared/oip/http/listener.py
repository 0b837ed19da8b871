"""One listening socket: cheroot's server around a socket, a pool and an application of ours."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from typing import Any

from cheroot.connections import ConnectionManager
from cheroot.server import HTTPServer

from upwell.shared.oip.http.application import Application
from upwell.shared.oip.http.connections import MAX_HEADER_BYTES, CherootConnection
from upwell.shared.oip.http.disconnects import DisconnectWatch
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

    ConnectionClass = CherootConnection
    timeout = IDLE_CONNECTION_S
    expiration_interval = _EXPIRY_EVERY_S
    max_request_header_size = MAX_HEADER_BYTES

    def __init__(
        self,
        listening: socket.socket,
        application: Application,
        workers: Workers,
        departures: DisconnectWatch,
        tls: TlsAdapter | None,
        connection_age_s: float,
    ) -> None:
        super().__init__(listening.getsockname()[:2] if listening.family != socket.AF_UNIX else "unix", None, 1)
        self.application = application
        self.departures = departures
        self.connection_age_s = connection_age_s
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
            except Exception as error:  # noqa: BLE001 (whatever it is: nobody could connect any more)
                if self.ready:
                    _log.error("cannot accept connections: %s", error)
                    time.sleep(_EXPIRY_EVERY_S)  # too few descriptors, as a rule: do not spin

    def end(self) -> None:
        """Accept no more, hand over what has already sent something, and close the rest."""
        if not self.ready:
            return
        self.ready = False
        self._connections.stop()
        self._thread.join()
        self._connections.hand_over(self.socket)
        self.socket.close()
        self._connections.close()

    def process_conn(self, conn: CherootConnection | _Wake) -> None:
        """Let a thread serve it, but for a new one: a thread per silent client would soon be all of them."""
        if isinstance(conn, _Wake):
            return
        if conn.is_new:
            conn.is_new = False
            self._connections.make_room()
            self._connections.put(conn)
        else:
            self.requests.put(conn)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Log as the rest of the program does. What a client can bring about at will is not worth a line."""
        _log.log(level if level >= logging.ERROR else logging.DEBUG, "%s", msg, exc_info=traceback)


class _Wake:
    """Stands among the idle connections to end the wait for them."""

    last_used = math.inf

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        """What becomes readable by `wake`."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the wait, once."""
        self._writer.send(b"x")

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()


class _Idle(ConnectionManager):
    """The connections without a request, of which there are never more than `MAX_IDLE`."""

    _selector: Any
    _from_server_socket: Any

    def __init__(self, server: Listener) -> None:
        super().__init__(server)
        self._wake = _Wake()
        self._selector.register(self._wake.fileno(), selectors.EVENT_READ, data=self._wake)

    def stop(self) -> None:
        """End the wait now, rather than at its next interval."""
        self._stop_requested = True
        self._wake.wake()
        super().stop()

    def hand_over(self, listening: socket.socket) -> None:
        """Accept who is connected already, and let the threads serve all who have sent something."""
        listening.settimeout(0)
        while (conn := self._from_server_socket(listening)) is not None:
            self.put(conn)
        for descriptor, conn in list(self._selector.select(timeout=0)):
            if isinstance(conn, CherootConnection):
                self._selector.unregister(descriptor)
                self.server.requests.put(conn)

    def make_room(self) -> None:
        """Close the tenth that has been idle for the longest, where there are too many."""
        if len(self._selector) <= MAX_IDLE:
            return
        idle = [
            (conn.last_used, descriptor, conn)
            for descriptor, conn in self._selector.connections
            if isinstance(conn, CherootConnection)
        ]
        for _, descriptor, conn in sorted(idle, key=lambda one: one[:2])[: MAX_IDLE // 10]:
            self._selector.unregister(descriptor)
            conn.close()
