"""Servers that break the framing below gRPC's messages: no HTTP/2 at all, or HTTP/2 that carries nonsense."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import TypeAlias

from tests.faults.accepting import Accepting

Speech: TypeAlias = Callable[[socket.socket], None]
"""What is said on one connection; the connection stays open after it."""

_PREFACE_BYTES = 24
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


class RawServer(Accepting):
    """Says its speech to whoever connects."""

    def __init__(self, speech: Speech) -> None:
        self._speech = speech
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Speak, and then listen until the other side ends."""
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
