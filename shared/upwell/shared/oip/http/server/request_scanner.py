"""Finds where requests begin and end in the bytes of an HTTP/1.1 connection, without I/O.

It is stricter than HTTP libraries: what another server or proxy could read differently is refused, not repaired,
because such a disagreement allows request smuggling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from upwell.shared.oip.http.replies import Rejected
from upwell.shared.oip.http.server.request import TAG_HEADER
from upwell.shared.oip.http.server.routes import check_size

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
_SHORT_HEAD_BYTES = 2048
"""Size up to which a connection remembers its last headers."""

_FREE_CHUNKS = 1000
_LEAST_CHUNK_BYTES = 256
"""Minimum average size of chunks beyond `_FREE_CHUNKS` (bytes): each chunk costs some microseconds, so a body of
one-byte chunks would take minutes.
"""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
_SINGLE = frozenset({"content-length", "transfer-encoding", "host", "authorization", "expect", "content-type"})
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Z-]+) ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])\r\n")
_HEADERS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")
_CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_MAX_CHUNK_LINE_BYTES = 10


@dataclass(frozen=True)
class RequestHead:
    """The head of a request. `headers` have lower-case names; `body_bytes` is None for a chunked body; `is_kept`: the
    client may send another request on the connection; `is_old`: it speaks HTTP/1.0.
    """

    method: str
    target: str
    headers: dict[str, str]
    body_bytes: int | None
    is_kept: bool
    is_old: bool
    expects_continue: bool


class RequestScanner:
    """Scans the bytes of one connection, one request at a time.

    `head` is set once it is complete, `is_whole` once the body is, and `refusal` if something is wrong; after one of
    the last two, nothing more is scanned.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._kept = b""
        self._former: tuple[bytes, RequestHead] | None = None
        self.refusal: Rejected | None = None
        self._begin()

    def _begin(self) -> None:
        self.head: RequestHead | None = None
        self.is_whole = False
        self._left_bytes = 0
        self._chunks = self._chunked_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that have come and are not scanned yet."""
        return len(self._kept)

    def next_request(self) -> None:
        """Start with the next request, after the current one was answered."""
        self._begin()

    def scan(self, data: bytes) -> list[memoryview]:
        """Scan `data`, which follows the bytes kept before; returns the parts that belong to the body, without
        framing."""
        data = self._kept + data if self._kept else data
        body: list[memoryview] = []
        end = 0
        if not self.is_whole and self.refusal is None:
            try:
                if self.head is None:
                    end = self._scan_head(data)
                if self.head is not None:
                    scan = self._scan_chunks if self.head.body_bytes is None else self._scan_sized
                    end = scan(data, end, body)
            except Rejected as error:
                self.refusal = error
        self._kept = data[end:]
        return body

    def _scan_head(self, data: bytes) -> int:
        if self._former is not None and data.startswith(self._former[0]):  # as most requests of one client begin
            self.head = self._former[1]
            self._left_bytes = self.head.body_bytes or 0
            return len(self._former[0])
        line_end = data.find(b"\r\n", 0, MAX_HEAD_BYTES)
        if line_end < 0 and len(data) >= MAX_HEAD_BYTES:
            raise Rejected(HTTPStatus.REQUEST_URI_TOO_LONG, "the request line is too long")
        if data and line_end < 0 and b"\n" in data:
            raise _bad_line()
        if line_end < 0:
            return 0
        found = _REQUEST_LINE.match(data)
        if found is None:
            raise _bad_line()
        end = data.find(b"\r\n\r\n", line_end, MAX_HEAD_BYTES)
        if end < 0 and len(data) >= MAX_HEAD_BYTES:
            raise Rejected(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the headers exceed {MAX_HEAD_BYTES} bytes")
        version = found[3]
        if version not in (b"1.1", b"1.0"):
            raise Rejected(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this server requires HTTP/1.1")
        if end < 0:
            if b"\n" in data[line_end + 2 :].replace(b"\r\n", b""):  # fail without waiting for the rest
                raise _bad_header()
            return 0
        self.head = _head(found[1].decode(), found[2].decode(), version, data[found.end() : end + 4])
        self._left_bytes = self.head.body_bytes or 0
        if end < _SHORT_HEAD_BYTES:
            self._former = data[: end + 4], self.head
        return end + 4

    def _scan_sized(self, data: bytes, start: int, body: list[memoryview]) -> int:
        end = min(start + self._left_bytes, len(data))
        if end > start:
            body.append(memoryview(data)[start:end])
        self._left_bytes -= end - start
        self.is_whole = self._left_bytes == 0
        return end

    def _scan_chunks(self, data: bytes, at: int, body: list[memoryview]) -> int:
        """`_left_bytes` counts the rest of a chunk and its line end, which are scanned in one piece."""
        while True:
            if self._left_bytes:
                end = at + min(self._left_bytes - 2, len(data) - at)
                if end > at:
                    body.append(memoryview(data)[at:end])
                self._left_bytes -= end - at
                if self._left_bytes > 2 or len(data) - end < 2:
                    return end
                if data[end : end + 2] != b"\r\n":
                    raise _bad_chunk()
                at, self._left_bytes = end + 2, 0
            # Only digits and a line end: anything else might be read differently by another server, which would then
            # see the next request begin at another byte.
            line = _CHUNK_LINE.match(data, at)
            if line is None:
                if len(data) - at >= _MAX_CHUNK_LINE_BYTES or b"\n" in data[at:] or not _may_become_line(data[at:]):
                    raise _bad_chunk()
                return at
            size_bytes = int(line[1], 16)
            if size_bytes == 0:  # no trailers are read
                rest = data[line.end() : line.end() + 2]
                if not b"\r\n".startswith(rest):
                    raise _bad_chunk()
                self.is_whole = rest == b"\r\n"
                return line.end() + 2 if self.is_whole else at
            self._chunks += 1
            self._chunked_bytes += size_bytes
            check_size(self._chunked_bytes, self._max_body_bytes)
            if self._chunks > _FREE_CHUNKS + self._chunked_bytes // _LEAST_CHUNK_BYTES:
                raise Rejected(HTTPStatus.BAD_REQUEST, "the chunks of the body are too small")
            at = line.end()
            self._left_bytes = size_bytes + 2


def _may_become_line(start: bytes) -> bool:
    return not start or re.fullmatch(rb"[0-9a-fA-F]{1,8}\r?", start) is not None


def _head(method: str, target: str, version: bytes, lines: bytes) -> RequestHead:
    if method not in _METHODS:
        raise Rejected(HTTPStatus.METHOD_NOT_ALLOWED, "no path answers this method")
    if not target.startswith("/") or target.startswith("//") or "#" in target:
        raise Rejected(HTTPStatus.BAD_REQUEST, "expected a path as the request target")
    if _HEADERS.fullmatch(lines) is None:
        raise _bad_header()
    headers = _headers(lines.split(b"\r\n")[:-2])
    is_old = version == b"1.0"
    if "host" not in headers and not is_old:
        raise Rejected(HTTPStatus.BAD_REQUEST, "the header Host is missing")
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if length is not None and re.fullmatch(r"[0-9]{1,19}", length) is None:
        raise Rejected(HTTPStatus.BAD_REQUEST, "expected Content-Length to be a number of bytes")
    if coding is not None and (length is not None or is_old):
        raise Rejected(HTTPStatus.BAD_REQUEST, "expected either Content-Length or chunked encoding, not both")
    if coding is not None and coding.lower() != "chunked":
        raise Rejected(HTTPStatus.BAD_REQUEST, "only the transfer coding chunked is supported")
    options = {word.strip() for word in headers.get("connection", "").lower().split(",")}
    is_kept = "close" not in options and (not is_old or "keep-alive" in options)
    expects_continue = headers.get("expect", "").lower() == "100-continue"
    body_bytes = int(length or 0) if coding is None else None
    return RequestHead(method, target, headers, body_bytes, is_kept, is_old, expects_continue)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise Rejected(HTTPStatus.BAD_REQUEST, f"more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        name = name.lower()
        value = value.strip(" \t")
        if name in headers:
            # Joined to one value, two tags would become a third that no rule knows.
            if name in _SINGLE or name.startswith(TAG_HEADER):
                raise Rejected(HTTPStatus.BAD_REQUEST, f"the header {name.title()} is repeated")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _bad_line() -> Rejected:
    return Rejected(HTTPStatus.BAD_REQUEST, "the request line is malformed")


def _bad_header() -> Rejected:
    return Rejected(HTTPStatus.BAD_REQUEST, "a header line is malformed")


def _bad_chunk() -> Rejected:
    return Rejected(HTTPStatus.BAD_REQUEST, "the chunks of the body are malformed")
