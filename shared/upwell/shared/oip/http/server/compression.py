"""Compressed bodies: requests are unpacked within the server's limits, answers packed if the client asks for it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from http import HTTPStatus

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.http.replies import Rejected, Reply
from upwell.shared.oip.http.server.body_memory import Share

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
                raise Rejected(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body takes more than {max_bytes} bytes unpacked"
                )
            if not piece and not rest:
                break
    except zlib.error:
        raise InvalidRequest(f"the body cannot be unpacked as {encoding}") from None
    if not reader.eof or reader.unused_data:
        raise InvalidRequest(f"the body is not exactly one complete {encoding} stream")
    return memoryview(bytes(whole))


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
