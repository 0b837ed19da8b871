"""When a refused caller may try again, as gRPC servers say it: in an error's trailers.

It is said twice, since clients differ: `grpc-retry-pushback-ms`, which gRPC's own retries obey (gRFC A6, where the
client's service config has the status among those to retry), and `google.rpc.RetryInfo` among the error's details in
`grpc-status-details-bin`, which client libraries built on google.rpc.Status read.
"""

from __future__ import annotations

import math

from upwell.shared.oip.statuses import Status

_PUSHBACK = "grpc-retry-pushback-ms"
_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"
_LONGEST_MS = 24 * 3600 * 1000


def trailers(status: Status) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata of an error: empty unless it says when to try again."""
    if status.retry_after_s is None:
        return ()
    after_ms = math.ceil(1e3 * min(max(status.retry_after_s, 1e-3), _LONGEST_MS / 1e3))
    return ((_PUSHBACK, str(after_ms)), (_DETAILS, _details(status, after_ms)))


def _details(status: Status, after_ms: int) -> bytes:
    """A serialized `google.rpc.Status` with one `RetryInfo`.

    Three small messages are written by hand rather than generated: `Status` (code 1, message 2, details 3: `Any`),
    `RetryInfo` (retry_delay 1) and `Duration` (seconds 1, nanos 2).
    """
    seconds, rest_ms = divmod(after_ms, 1000)
    delay = _number(1, seconds) + _number(2, rest_ms * 1_000_000)
    detail = _bytes(1, _RETRY_INFO) + _bytes(2, _bytes(1, delay))
    code: int = status.code.value[0]
    return _number(1, code) + _bytes(2, status.text.encode()) + _bytes(3, detail)


def _number(field: int, value: int) -> bytes:
    """A field of a number that is not negative; nothing for 0, which is what its absence means."""
    return bytes([field << 3]) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
