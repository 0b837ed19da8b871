"""cheroot's connections and requests, with its weak places made good.

cheroot reads the request line and watches idle connections. What it does not do, or does not do safely, is here:
a handshake off the accepting thread, time limits over whole headers and bodies, headers that two readers could
understand differently, errors as JSON, and large replies without copies.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from cheroot.server import HTTPConnection, HTTPRequest

from upwell.shared.oip.auth.callers import client_key
from upwell.shared.oip.dataplane import Signal
from upwell.shared.oip.http.application import check_size
from upwell.shared.oip.http.memory import Share
from upwell.shared.oip.http.reader import IDLE_S, Reader
from upwell.shared.oip.http.replies import CLIENT_CLOSED_REQUEST, Rejected, Reply, error_reply
from upwell.shared.oip.http.request import TAG_HEADER
from upwell.shared.oip.http.tls import certificate_name

HEADERS_S = 10.0
"""For the handshake, and for all headers of a request."""

NEXT_REQUEST_S = 0.002
"""So long a thread waits for the next request itself, where no other connection waits for a thread."""

WRITE_S = 60.0
"""For the answer."""

MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 100

_LINGER_S = 1.0
_LINGER_BYTES = 16 << 20
_SMALL_BYTES = 16 << 10
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TAG = TAG_HEADER.title().encode()
"""Joined to one value, two tags would be a third one that no rule knows."""
_SINGLE = frozenset({b"Content-Length", b"Transfer-Encoding", b"Host", b"Authorization", b"Expect", b"Content-Type"})


def read_headers(lines: Any, headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Read header lines up to the empty one. Raises `ValueError`, whose text goes to the client.

    Stricter than cheroot: what another server or proxy could read otherwise is refused, not mended.
    """
    for _ in range(MAX_HEADERS + 1):
        line = lines.readline()
        if line == b"\r\n":
            if b"Transfer-Encoding" in headers and b"Content-Length" in headers:
                raise ValueError("a body has a length or comes in chunks, not both")
            return headers
        name, colon, value = line.partition(b":")
        value = value[:-2].strip(b" \t")
        if not (line.endswith(b"\r\n") and colon and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError("a header line is malformed")
        name = name.title()
        if name in headers:
            if name in _SINGLE or name.startswith(_TAG):
                raise ValueError(f"the header {name.decode()} is given twice")
            value = headers[name] + b", " + value
        if name == b"Content-Length" and not (value.isdigit() and len(value) <= 19):
            raise ValueError("Content-Length is a number of bytes")
        if name == b"Transfer-Encoding" and value.lower() != b"chunked":
            raise ValueError("no transfer coding but chunked is read here")
        headers[name] = value
    raise ValueError(f"more than {MAX_HEADERS} headers")


class CherootRequest(HTTPRequest):
    """One request: cheroot parses its first lines, the application answers it."""

    conn: CherootConnection

    def __init__(self, server: Any, conn: CherootConnection) -> None:
        super().__init__(server, conn)
        self._expects_continue = False
        self.header_reader = self._read_headers

    def _read_headers(self, lines: Any, headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
        read_headers(lines, headers)
        if b"Host" not in headers and self.request_protocol != b"HTTP/1.0":
            raise ValueError("the header Host is missing")
        # cheroot would ask for the body before anybody has looked at its size.
        self._expects_continue = headers.pop(b"Expect", b"").lower() == b"100-continue"
        # It is a list, whose words cheroot knows alone and in one spelling.
        options = {word.strip().lower() for word in headers.get(b"Connection", b"").split(b",")}
        if b"close" in options:
            headers[b"Connection"] = b"close"
        elif b"keep-alive" in options:
            headers[b"Connection"] = b"Keep-Alive"
        return headers

    def parse_request(self) -> None:
        """Read the request line and the headers."""
        self.conn.rfile.is_at_request_line = True
        with self.conn.waited_for():
            super().parse_request()

    def respond(self) -> None:
        """Answer, and keep the connection only where the whole body has been read."""
        incoming = IncomingRequest(self, self._expects_continue)
        reply = self.server.application.answer(incoming)
        self.close_connection |= not incoming.is_read or not self.server.ready or self.conn.is_old
        self.conn.lingers = not incoming.is_read
        self._send(reply)

    def simple_response(self, status: str, msg: str = "") -> None:
        """What cheroot itself has to say of a request that it cannot read, in our form. The connection ends."""
        code = int(status[:3])
        if code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # It is the headers: no body has been looked at yet.
            code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        text = msg or status[4:]
        self.close_connection = self.conn.lingers = True
        self._send(error_reply(Rejected(code, "internal error" if code >= 500 and not msg else text)))

    def _send(self, reply: Reply) -> None:
        self.sent_headers = True
        lines = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}", f"Date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        lines += [f"Content-Length: {reply.size_bytes}", "X-Content-Type-Options: nosniff"]
        if self.close_connection:
            lines.append("Connection: close")
        elif self.response_protocol == "HTTP/1.0":
            lines.append("Connection: Keep-Alive")
        head = "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace")
        is_head = getattr(self, "method", b"") == b"HEAD"
        self.conn.send(head, *(() if is_head else reply.body))


def _phrase(status: int) -> str:
    return "Client Closed Request" if status == CLIENT_CLOSED_REQUEST else HTTPStatus(status).phrase


class IncomingRequest:
    """A parsed request as the application sees it (`Incoming`)."""

    def __init__(self, request: CherootRequest, expects_continue: bool) -> None:
        self._connection = request.conn
        self._departures = request.server.departures
        self._expects_continue = expects_continue
        headers: Mapping[bytes, bytes] = request.inheaders
        self.method: str = request.method.decode("latin-1")
        self.target: str = request.uri.decode("latin-1")
        self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in headers.items()}
        self.client = request.conn.client
        self.certificate = request.conn.certificate
        self.address = request.conn.address()
        is_chunked = "transfer-encoding" in self.headers
        self.body_bytes = None if is_chunked else int(self.headers.get("content-length", "0"))
        self.is_read = self.body_bytes == 0

    def read(self, max_bytes: int, share: Share) -> memoryview:
        """The whole body, whose memory is taken of `share` as it comes."""
        check_size(self.body_bytes or 0, max_bytes)
        share.expect(self.body_bytes or 0)
        if self._expects_continue:
            self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        reader = self._connection.rfile
        reader.deadline_s = time.monotonic() + IDLE_S
        size = self.body_bytes
        with self._connection.waited_for():
            take = share.take
            body = reader.read_chunks(max_bytes, take) if size is None else reader.read_exactly(size, take)
        share.has_come()
        self.is_read = True
        return body

    def break_off(self) -> None:
        """End the connection, from another thread."""
        self._connection.break_off()

    def watched(self, cancelled: Signal) -> AbstractContextManager[None]:
        """For as long as the context lasts, `cancelled` is set when the client leaves."""
        watched: AbstractContextManager[None] = self._departures.watched(self._connection.socket.fileno(), cancelled)
        return watched


class CherootConnection(HTTPConnection):
    """One client's connection, with or without TLS."""

    RequestHandlerClass = CherootRequest
    rfile: Reader

    def __init__(self, server: Any, sock: socket.socket, _: Any = None) -> None:
        super().__init__(server, sock, _files)
        self.is_new = True
        self.lingers = False
        self.client = self.certificate = ""
        self._is_greeted = not isinstance(sock, ssl.SSLSocket)
        self._opened_s = time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether the client is to connect anew, so that a long connection does not stay with one process."""
        return time.monotonic() - self._opened_s >= float(self.server.connection_age_s)

    def serve_once(self) -> None:
        """Shake hands, answer what comes without a pause, and then go back to the idle ones, or close."""
        with suppress(OSError):  # the client has gone while it was answered
            while self.communicate():
                if not self.server.ready or not self._goes_on():
                    self.server.put_conn(self)
                    return
        self.close()

    def _goes_on(self) -> bool:
        """Whether the next request comes at once: then it need not go through two other threads."""
        return not self.server.requests.has_waiting() and self.rfile.comes_within(NEXT_REQUEST_S)

    def communicate(self) -> bool:
        """Whether the connection is to be kept."""
        if not self._is_greeted:
            return self._greet()
        if not self.client:
            self.client = f"{self.remote_addr}:{self.remote_port}" if self.remote_addr else "unix"
        self.rfile.deadline_s = time.monotonic() + HEADERS_S
        return bool(super().communicate())  # type: ignore[no-untyped-call]  # cheroot has no types

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send the pieces. Raises `OSError` where the client does not take them in time."""
        self.socket.settimeout(WRITE_S)
        if sum(len(piece) for piece in pieces) <= _SMALL_BYTES:
            pieces = (b"".join(pieces),)  # one packet rather than two
        with self.waited_for():
            for piece in pieces:
                if piece:
                    self.socket.sendall(piece)

    def close(self) -> None:
        """Close, having let a client in the middle of sending read its answer: unread bytes would take it back."""
        if self.lingers:
            self.lingers = False
            with suppress(OSError, ValueError), self.waited_for():
                self.rfile.deadline_s = time.monotonic() + _LINGER_S
                self.socket.shutdown(socket.SHUT_WR)
                self.rfile.discard(_LINGER_BYTES)
        with suppress(OSError):
            super().close()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Say that a thread waits for this client until the block ends, so that `Workers.waiting` may break it off."""
        waiting = self.server.requests.waiting
        waiting.add(id(self), self)
        try:
            yield
        finally:
            waiting.remove(id(self))

    def address(self) -> str:
        """Where the client is, whatever the port."""
        return client_key(f"{self.remote_addr}:{self.remote_port}" if self.remote_addr else "unix")

    def break_off(self) -> None:
        """End what a thread waits for of this client, from another thread."""
        with suppress(OSError):  # TLS has a state of its own, which that thread is using
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def _greet(self) -> bool:
        self.socket.settimeout(HEADERS_S)
        try:
            with self.waited_for():
                self.socket.do_handshake()
        except OSError:  # no TLS, an unknown certificate, or nothing at all: TLS itself has told the client
            return False
        self._is_greeted = True
        self.client = self.certificate = certificate_name(self.socket)
        return True


def _files(connection: socket.socket, mode: str, _: int) -> Reader | None:
    return Reader(connection) if mode == "rb" else None
