"""A webhook's receiver on a real socket, which answers what it is told to."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.faults.certificates import Pair


@dataclass(frozen=True)
class Posted:
    """One POST that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def sequence(self) -> int:
        """Of the event."""
        return int(json.loads(self.body)["sequence"])


@dataclass(frozen=True)
class Reply:
    """What is answered."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Receiver:
    """Takes POSTs. `posted` has all, `taken` those that were answered with 2xx."""

    def __init__(self, port: int = 0, pair: Pair | None = None) -> None:
        receiver = self
        self.reply: Callable[[Posted], Reply] = lambda _: Reply()
        self.posted: list[Posted] = []
        self.taken: list[Posted] = []
        self.connections = 0
        self._open: set[socket.socket] = set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 20

            def setup(self) -> None:
                receiver.connections += 1
                receiver._open.add(self.request)
                super().setup()

            def finish(self) -> None:
                receiver._open.discard(self.request)
                super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posted = Posted(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                receiver.posted.append(posted)
                reply = receiver.reply(posted)
                if 200 <= reply.status < 300:
                    receiver.taken.append(posted)
                self.send_response(reply.status)
                for name, value in reply.headers:
                    self.send_header(name, value)
                if reply.status != 204:
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:
                """The other end was killed."""

        self._server = Server(("127.0.0.1", port), Handler)
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.cert, pair.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """Take no connection more, and end when those that are open are closed by the other side."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def hang_up(self) -> None:
        """As `close`, and cut the connections that are open."""
        self._server.shutdown()
        self._server.socket.close()  # at once: nobody is to get in between
        for connected in tuple(self._open):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        self.close()


@contextmanager
def receiver(pair: Pair | None = None) -> Iterator[Receiver]:
    """A receiver on a free port."""
    found = Receiver(pair=pair)
    try:
        yield found
    finally:
        found.close()
