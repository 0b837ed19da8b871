"""A client of HTTP/2 that does only what it is told: half a preface, headers without a message, a message in drops."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4

INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as literals without indexing or Huffman code (RFC 7541, 6.2.2)."""
    fields = [part.encode() for pair in headers.items() for part in pair]
    assert all(len(field) < 127 for field in fields)
    texts = [bytes([len(field)]) + field for field in fields]
    return b"".join(b"\x00" + texts[at] + texts[at + 1] for at in range(0, len(texts), 2))


def call_headers(path: str = INFER, **more: str) -> bytes:
    """The block that begins a gRPC call."""
    named = {name.replace("_", "-"): value for name, value in more.items()}
    begin = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    return header_block({**begin, "te": "trailers", "content-type": "application/grpc", **named})


def grpc_message(data: bytes, *, is_compressed: bool = False) -> bytes:
    """A message as gRPC frames it: whether it is compressed, its length, itself."""
    return struct.pack(">BI", is_compressed, len(data)) + data


class RawConnection:
    """One connection; `send` sends bytes as they are."""

    def __init__(self, address: str, *, greets: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10.0)
        if greets:
            self.send(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, *parts: bytes) -> None:
        """Send them one after another."""
        self.socket.sendall(b"".join(parts))

    def begin_call(self, stream: int, path: str = INFER, **headers: str) -> None:
        """Open a call and send no message."""
        self.send(frame(HEADERS, END_HEADERS, stream, call_headers(path, **headers)))

    def ends_within(self, seconds: float) -> bool:
        """Whether the server closes the connection or resets a stream in that time; what it says else is read."""
        self.socket.settimeout(seconds)
        try:
            while (head := self._exactly(9)) is not None:
                payload = self._exactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if payload is None or kind in (GOAWAY, RST_STREAM) or (kind == HEADERS and flags & END_STREAM):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def received_bytes(self, stream: int) -> int:
        """The size of the data that comes on a stream until the server ends it."""
        size_bytes = 0
        while (head := self._exactly(9)) is not None:
            payload = self._exactly(int.from_bytes(head[:3], "big")) or b""
            kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
            if number == stream:
                assert kind != RST_STREAM
                size_bytes += len(payload) if kind == DATA else 0
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    return size_bytes
        raise AssertionError("the connection was closed before the end of the stream")

    def close(self) -> None:
        """End it."""
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                return None
            data += piece
        return data
