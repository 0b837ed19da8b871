"""Servers that break the framing below gRPC's messages: no HTTP/2 at all, or HTTP/2 that carries nonsense."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeAlias

Speech: TypeAlias = Callable[[socket.socket], None]
"""What is said on one connection; the connection stays open after it."""

_PREFACE_BYTES = 24
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


class RawServer:
    """Says its speech to whoever connects."""

    def __init__(self, speech: Speech) -> None:
        self._speech = speech
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End every connection and thread."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for connection in self._open:
            with contextlib.suppress(OSError):  # the other side may have gone first
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._open):
            one.close()

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._speech(connection)
            while connection.recv(65536):
                pass


def says(data: bytes) -> Speech:
    """Say this at once."""
    return lambda connection: connection.sendall(data)


def http2(*frames: tuple[int, int, bytes]) -> Speech:
    """Speak HTTP/2 as far as the first request, then answer it with these frames: (type, flags, payload)."""

    def speak(connection: socket.socket) -> None:
        _receive(connection, _PREFACE_BYTES)
        connection.sendall(_frame(_SETTINGS, 0, 0, b""))
        stream = _first_request(connection)
        connection.sendall(b"".join(_frame(kind, flags, stream, payload) for kind, flags, payload in frames))

    return speak


def _first_request(connection: socket.socket) -> int:
    """The number of the stream that the first HEADERS frame opens."""
    while True:
        head = _receive(connection, 9)
        _receive(connection, int.from_bytes(head[:3], "big"))
        if head[3] == _HEADERS:
            return int.from_bytes(head[5:], "big")


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the client left")
        data += more
    return data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """One header field, HPACK literal without indexing (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


_OK = b"\x88" + _literal(b"content-type", b"application/grpc")
"""`:status: 200` from HPACK's static table, and gRPC's content type."""
_BEGIN = (_HEADERS, _END_HEADERS, _OK)
_END = (_HEADERS, _END_HEADERS | _END_STREAM, _literal(b"grpc-status", b"0"))

BROKEN_FRAMING: dict[str, Speech] = {
    "http/1 error": says(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "noise": says(bytes(range(256)) * 16),
    "noise after the settings": http2((0x77, 0xFF, b"\xff" * 64), (_DATA, 0xFF, b"\xff" * 10)),
    "message longer than told": http2(_BEGIN, (_DATA, 0, struct.pack(">BI", 0, 3) + b"0123456789"), _END),
    "message shorter than told": http2(_BEGIN, (_DATA, 0, struct.pack(">BI", 0, 99) + b"0123456789"), _END),
    "message of 4 GB": http2(_BEGIN, (_DATA, 0, struct.pack(">BI", 0, 2**32 - 1) + b"0123456789"), _END),
    "compressed in no known way": http2(_BEGIN, (_DATA, 0, struct.pack(">BI", 1, 10) + b"0123456789"), _END),
    "no message": http2(_BEGIN, _END),
    "no status": http2(_BEGIN, (_DATA, _END_STREAM, struct.pack(">BI", 0, 0))),
    "broken headers": http2((_HEADERS, _END_HEADERS, b"\xff" * 20)),
    "http error": http2((_HEADERS, _END_HEADERS | _END_STREAM, b"\x8d" + _literal(b"content-type", b"text/html"))),
}
"""Servers that get the framing wrong, by what is wrong with it."""
