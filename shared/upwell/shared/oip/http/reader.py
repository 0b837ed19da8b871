"""Reading from a client's socket, each byte of it with a time limit and a size limit."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus

import numpy as np

from upwell.shared.oip.http.application import check_size
from upwell.shared.oip.http.replies import Rejected

IDLE_S = 10.0
"""A client that has begun to send, and then sends nothing for so long, has gone or means harm."""

SLOWEST_BYTES_PER_S = 4096
"""What has come of a body buys time for the rest; one that comes more slowly holds a thread for nothing."""

_PIECE_BYTES = 64 << 10
_MAX_LINE_BYTES = 1024
_FREE_CHUNKS = 1000
_LEAST_CHUNK_BYTES = 256
"""What the chunks have on average where there are more than `_FREE_CHUNKS`: each costs some microseconds, even one of a
byte, and so a body of such would take minutes.
"""

_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e]+ HTTP/[0-9]\.[0-9]\r\n")
_CHUNK_LINE = re.compile(rb"[0-9a-fA-F]{1,8}\r\n")


class Reader:
    """Buffered reading of one socket until `deadline_s`, an instant of `time.monotonic()`.

    Its methods are those that cheroot calls on what it reads from. Raises `TimeoutError` when the time is up.
    """

    bytes_read = 0
    """cheroot's own count, which nobody reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self.is_at_request_line = False
        self.deadline_s = 0.0
        self.closed = False

    def has_data(self) -> bool:
        """Whether something has come that the kernel would not tell of: it is here, or already decrypted."""
        return bool(self._buffer) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    def comes_within(self, seconds: float) -> bool:
        """Whether something comes, or the client's end, in that time."""
        if self.has_data():
            return True
        self._socket.settimeout(seconds)
        try:
            self._buffer += self._socket.recv(_PIECE_BYTES)
        except TimeoutError:
            return False
        return True

    def readline(self, size: int = _MAX_LINE_BYTES) -> bytes:
        """Up to and with the next line feed, at most `size` bytes; less where the client ends.

        A carriage return elsewhere than before the line feed, and a first line of a request that is none, are given
        back without their end, which nobody takes for a line.
        """
        at = 0
        while True:
            found = self._buffer.find(b"\n", at, size)
            if found >= 0:
                return self._line(self._take(found + 1))
            if len(self._buffer) >= size:
                self.is_at_request_line = False  # a long one comes in pieces
                return self._take(size)
            at = len(self._buffer)
            if not self._more():
                return self._take(at)

    def _line(self, line: bytes) -> bytes:
        is_first, self.is_at_request_line = self.is_at_request_line, False
        is_wrong = b"\r" in line[:-2] or (is_first and not _REQUEST_LINE.fullmatch(line))
        return (line.rstrip(b"\r\n") or b" ") if is_wrong else line

    def read_exactly(self, size_bytes: int, take: Callable[[int], None]) -> memoryview:
        """So many bytes, which move the deadline; `take` is asked for the memory of what has come.

        Raises `Rejected` where the client ends before, and what `take` raises.
        """
        whole = np.empty(size_bytes, np.uint8).data  # of which the kernel gives no page before it is written to
        first = self._take(min(size_bytes, len(self._buffer)))
        take(len(first))
        whole[: len(first)] = first
        done = len(first)
        while done < size_bytes:
            self._wait()
            count = self._socket.recv_into(whole[done:])
            if count == 0:
                raise Rejected(HTTPStatus.BAD_REQUEST, "the body ends before its length")
            take(count)
            done += count
            self.deadline_s += count / SLOWEST_BYTES_PER_S
        return whole

    def read_chunks(self, max_bytes: int, take: Callable[[int], None]) -> memoryview:
        """A body in chunks, of at most `max_bytes` in all; `take` is asked for the memory of what has come.

        Raises `Rejected` where it is malformed or larger.
        """
        whole = bytearray()
        count = 0
        while size_bytes := self._chunk_bytes():
            check_size(len(whole) + size_bytes, max_bytes)
            count += 1
            if count > _FREE_CHUNKS + len(whole) // _LEAST_CHUNK_BYTES:
                raise Rejected(HTTPStatus.BAD_REQUEST, "the chunks of the body are too small")
            while size_bytes > 0:
                piece = self.read_exactly(min(size_bytes, _PIECE_BYTES), take)
                whole += piece
                size_bytes -= len(piece)
            if bytes(self.read_exactly(2, take)) != b"\r\n":
                raise _malformed()
        if self.readline() != b"\r\n":  # trailers, which nobody needs here
            raise _malformed()
        return memoryview(whole)

    def discard(self, max_bytes: int) -> None:
        """Read and forget what still comes, so that a client in the middle of sending reads its answer."""
        while max_bytes > 0 and self._more():
            max_bytes -= len(self._buffer)
            self._buffer.clear()

    def close(self) -> None:
        """Read no more; the socket is its owner's."""
        self.closed = True

    def _chunk_bytes(self) -> int:
        # Digits and the end of the line alone: whatever else may stand there, another reader might take otherwise, and
        # see the next request begin at another byte.
        line = self.readline()
        if not _CHUNK_LINE.fullmatch(line):
            raise _malformed()
        return int(line, 16)

    def _take(self, size_bytes: int) -> bytes:
        taken = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return taken

    def _more(self) -> bool:
        self._wait()
        data = self._socket.recv(_PIECE_BYTES)
        self._buffer += data
        return bool(data)

    def _wait(self) -> None:
        """Let the next read last no longer than there is time."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")  # the words by which cheroot knows it
        self._socket.settimeout(min(left_s, IDLE_S))


def _malformed() -> Rejected:
    return Rejected(HTTPStatus.BAD_REQUEST, "the chunks of the body are malformed")
