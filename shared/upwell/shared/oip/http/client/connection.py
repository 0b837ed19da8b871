"""One connection of an HTTP client: what is sent and received within a deadline, and how it is closed or reset."""

from __future__ import annotations

import io
import socket
import ssl
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPResponse
from typing import Any

from upwell.shared.platform.socket_connect import left_s

_JOINED_BYTES = 64 << 10
"""Size up to which a copy costs less than another system call (bytes)."""


CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors that mean that the other end closed the connection, rather than staying silent."""


_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""`struct linger`: on, with a timeout of 0."""


class _Reader(io.BufferedReader):
    """A reader that lives as long as its connection, though every answer read from it closes it."""

    def close(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing: an answer that is dropped flushes its reader, and Python 3.13 reports what that raises once the
        connection is closed."""


class HttpConnection(io.RawIOBase):
    """A connected socket on which no wait goes beyond `until_s` (monotonic), however slowly bytes come."""

    def __init__(self, connected: socket.socket, until_s: float) -> None:
        self.socket = connected
        self.until_s = until_s
        self._ended = False
        self._reader = _Reader(self)
        self._kept: tuple[int, int] | None = None

    @property
    def was_unread(self) -> bool:
        """Whether the other end closed the kept connection before any byte of the current call reached even its kernel.
        Then nobody has read any of that call.

        Known only on Linux. A reset proves nothing: it acknowledges nothing, though all may have been read.
        """
        moved = _moved(self.socket)
        if self._kept is None or moved is None:
            return False
        # A clean end counts as one byte, and would have acknowledged what had come before it.
        return moved[0] == self._kept[0] and moved[1] > self._kept[1]

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive available bytes; waits for the first byte unless in look-only mode (None: there is nothing)."""
        self.socket.settimeout(left_s(self.until_s) if self.until_s else 0.0)
        try:
            size = self.socket.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        self._ended = size == 0
        return size

    def is_quiet(self) -> bool:
        """Whether the connection is open and no unexpected bytes have come. Does not wait."""
        self.until_s = 0.0
        try:
            self._kept = _moved(self.socket)  # before the check, so that an end right after it is noticed
            return not self._reader.peek(1) and not self._ended
        except OSError:
            return False

    def makefile(self, _: str) -> io.BufferedReader:
        """The reader that `HTTPResponse` asks for."""
        return self._reader

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in order."""
        if sum(map(len, pieces)) <= _JOINED_BYTES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            view = memoryview(piece)
            while view:
                self.socket.settimeout(left_s(self.until_s))
                view = view[self.socket.send(view) :]

    def response(self, method: str) -> HTTPResponse:
        """Status and headers of the answer. Raises `OSError` and `http.client.HTTPException`."""
        found = HTTPResponse(self, method=method)  # type: ignore[arg-type]  # it asks for `makefile` alone
        found.begin()
        if self._ended:  # `HTTPResponse` takes it for the end of the headers
            raise ConnectionResetError("the connection ended within the headers of the answer")
        return found

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self.socket.close()

    def abort(self) -> None:
        """Close with a reset: unsent data in the kernel is dropped, which frees the link at once."""
        with suppress(OSError):  # already closed
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()


def notice_silence(connected: socket.socket, silence_s: float) -> None:
    """Let the kernel detect a dead peer, as far as it can: sent bytes that are not acknowledged, or a keepalive probe
    without an answer after `silence_s` of silence.
    """
    seconds = max(1, round(silence_s))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2e3 * silence_s))


_MOVED = struct.Struct("=QQ")


_MOVED_AT = 120
"""Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info` of Linux 4.1 and later."""


def _moved(connected: socket.socket) -> tuple[int, int] | None:
    """The bytes that the other end's kernel has acknowledged, and the bytes received from it, its FIN included; None if
    this kernel does not say.
    """
    if sys.platform != "linux":
        return None
    end = _MOVED_AT + _MOVED.size
    data = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, end)
    if len(data) < end:
        return None
    acknowledged, received = _MOVED.unpack_from(data, _MOVED_AT)
    return acknowledged, received
