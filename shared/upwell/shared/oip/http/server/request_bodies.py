"""Request bodies: the memory that they take together, which to drop when it runs out, and compressed ones."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NoReturn

from upwell.shared.errors import InvalidRequest, Refused
from upwell.shared.oip.http.replies import STATUS_HEADER, Rejected, Reply

PATIENCE_S = 2.0
"""Time after which an incoming body may be dropped if memory is short (seconds)."""


class Memory:
    """`size_bytes` of memory for all requests together. Thread-safe.

    A body takes as much as has come of it, not as much as its client announces: so clients that hold memory have sent
    that much. When a request is refused for lack of memory, one body that has been coming for `PATIENCE_S` is dropped,
    the oldest of the address that holds the most. So clients that send almost everything and then wait do not keep
    others out.
    """

    def __init__(self, size_bytes: int) -> None:
        self.free_bytes = size_bytes
        self.lock = threading.Lock()
        self.shares: dict[Share, None] = {}  # oldest first

    def refuse(self) -> NoReturn:
        """Drop a slow body, if there is one, and raise `Refused`."""
        slow_s = time.monotonic() - PATIENCE_S
        with self.lock:
            held: Counter[str] = Counter()
            for share in self.shares:
                held[share.address] += share.taken_bytes
            slow = [one for one in self.shares if one.is_coming and one.taken_bytes and one.since_s <= slow_s]
            if slow:
                given_up = max(slow, key=lambda one: held[one.address])
                given_up.is_coming = False
                given_up.break_off()
        raise Refused("too many large requests are in progress")


class Share:
    """One request's part of the memory; its client is at `address`. `break_off` ends its connection, from any
    thread."""

    def __init__(self, memory: Memory, address: str, break_off: Callable[[], object]) -> None:
        self.address = address
        self.break_off = break_off
        self.since_s = time.monotonic()
        self.taken_bytes = 0
        self.is_coming = True
        self._memory = memory
        with memory.lock:
            memory.shares[self] = None

    def expect(self, size_bytes: int) -> None:
        """Raise `Refused` if so much memory is not free now; takes nothing."""
        if size_bytes > self._memory.free_bytes:
            self._memory.refuse()

    def take(self, size_bytes: int) -> None:
        """Take memory until the end of the request. Raises `Refused` if it is not free."""
        with self._memory.lock:
            has_room = size_bytes <= self._memory.free_bytes
            if has_room:
                self._hold(size_bytes)
        if not has_room:
            self._memory.refuse()

    def has_come(self) -> None:
        """The body is complete and can no longer be dropped."""
        with self._memory.lock:
            self.is_coming = False

    def waits(self, size_bytes: int) -> None:
        """An answer of this size waits for its client, and can be dropped as a body can. It counts even if it exceeds
        the limit.
        """
        with self._memory.lock:
            self._hold(size_bytes)
            self.since_s, self.is_coming = time.monotonic(), True

    def give_back(self) -> None:
        """The request has ended."""
        with self._memory.lock:
            del self._memory.shares[self]
            self._memory.free_bytes += self.taken_bytes

    def _hold(self, size_bytes: int) -> None:
        self._memory.free_bytes -= size_bytes
        self.taken_bytes += size_bytes


LEAST_BYTES = 1024
"""Minimum size of an answer to compress; shorter ones fit in one packet."""

_WINDOWS: Mapping[str, int] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 1  # higher levels take several times as long, and answers have deadlines
_PIECE_BYTES = 1 << 20


def encoding_of(headers: Mapping[str, str]) -> str:
    """The encoding of a request's body, "" if none. Raises `Rejected` (415) for one that is not supported."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding in _WINDOWS:
        return encoding
    if encoding != "identity":
        known = " and ".join(_WINDOWS)
        raise Rejected(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"this content encoding is not supported; expected {known}")
    return ""


def unpacked(encoding: str, body: memoryview, max_bytes: int, share: Share) -> memoryview:
    """The unpacked body, whose memory is taken from `share` piece by piece.

    Raises `InvalidRequest` for damaged data, `Rejected` (413) for more than `max_bytes`, and `Refused` if there is no
    memory for it.
    """
    reader = zlib.decompressobj(_WINDOWS[encoding])
    whole = bytearray()
    rest: bytes | memoryview = body
    try:
        while not reader.eof:
            share.take(_PIECE_BYTES)
            piece = reader.decompress(rest, _PIECE_BYTES)
            whole += piece
            rest = reader.unconsumed_tail
            if len(whole) > max_bytes:
                raise too_large(f"the body takes more than {max_bytes} bytes unpacked, the most that are read")
            if not piece and not rest:
                break
    except zlib.error:
        raise InvalidRequest(f"the body cannot be unpacked as {encoding}") from None
    if not reader.eof or reader.unused_data:
        raise InvalidRequest(f"the body is not exactly one complete {encoding} stream")
    return memoryview(bytes(whole))


def too_large(text: str) -> Rejected:
    """The refusal (413) of what is too large."""
    return Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, ((STATUS_HEADER, "RESOURCE_EXHAUSTED"),))


def accepted(headers: Mapping[str, str]) -> str:
    """The encoding for an answer, "" if none: our first one that the client accepts without `q=0`."""
    for one in headers.get("accept-encoding", "").split(","):
        name, _, weight = one.partition(";")
        if name.strip().lower() in _WINDOWS and weight.replace(" ", "").rstrip("0.") != "q=":
            return name.strip().lower()
    return ""


def packed(reply: Reply, encoding: str) -> Reply:
    """The reply with its body compressed, if that is long enough to gain by it."""
    if not encoding or reply.size_bytes < LEAST_BYTES:
        return reply
    whole = b"".join(reply.body)
    body = gzip.compress(whole, _LEVEL, mtime=0) if encoding == "gzip" else zlib.compress(whole, _LEVEL)
    return Reply(reply.status, (*reply.headers, ("Content-Encoding", encoding), ("Vary", "Accept-Encoding")), (body,))
