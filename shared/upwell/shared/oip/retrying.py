"""When a refused caller may try again, as gRPC servers say it in an error's trailers, and HTTP servers in its headers.

It is said twice, since clients differ: `grpc-retry-pushback-ms`, which gRPC's own retries obey (gRFC A6, where the
client's service config has the status among those to retry), and `google.rpc.RetryInfo` among the error's details in
`grpc-status-details-bin`, which client libraries built on google.rpc.Status read. Either is heeded where we are the
client, for servers differ as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from upwell.shared.oip.statuses import Status

_PUSHBACK = "grpc-retry-pushback-ms"
_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"
_LONGEST_MS = 24 * 3600 * 1000
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
_SECONDS = re.compile(r"[0-9]{1,9}")
_MAX_DETAILS_BYTES = 8192


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


def told_by_trailers(trailing: Iterable[Any] | None) -> float | None:
    """After how many seconds another try may be worth it, by an error's trailing metadata; None where they do not say.

    The trailers are a stranger's: what cannot be read says nothing.
    """
    said = dict(trailing or ())
    pushback, details = said.get(_PUSHBACK), said.get(_DETAILS)
    if isinstance(pushback, str) and _MILLISECONDS.fullmatch(pushback):
        return int(pushback) / 1e3
    if isinstance(details, bytes) and len(details) <= _MAX_DETAILS_BYTES:
        return _retry_delay_s(details)
    return None


def told_by_headers(milliseconds: str, seconds: str) -> float | None:
    """The same by the headers `Retry-After-Ms` and `Retry-After`, empty where they are not there.

    A `Retry-After` that names an instant says nothing: clocks of devices are often wrong.
    """
    if _MILLISECONDS.fullmatch(milliseconds.strip()):
        return int(milliseconds) / 1e3
    return float(seconds) if _SECONDS.fullmatch(seconds.strip()) else None


def _retry_delay_s(details: bytes) -> float | None:
    """The delay of the `RetryInfo` in a serialized `google.rpc.Status`, as `_details` writes it."""
    try:
        for any_of in _messages(details, 3):
            if _RETRY_INFO in _messages(any_of, 1):
                delays = [delay for info in _messages(any_of, 2) for delay in _messages(info, 1)]
                numbers = {
                    field: value for delay in delays for field, value in _fields(delay) if isinstance(value, int)
                }
                delay_s = numbers.get(1, 0) + numbers.get(2, 0) / 1e9
                return delay_s if 0 < delay_s < 2**32 else None
    except (IndexError, ValueError):
        return None
    return None


def _messages(data: bytes, number: int) -> list[bytes]:
    return [value for field, value in _fields(data) if field == number and isinstance(value, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and byte strings of a message with their field numbers. Raises `ValueError`, `IndexError`."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            if value > len(data) - at:
                raise ValueError("cut off")
            yield tag >> 3, data[at : at + value]
            at += value
        elif tag & 7 == 0:
            yield tag >> 3, value
        else:
            raise ValueError("a kind of field that these messages do not have")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        digit, at = data[at], at + 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
        shift += 7
    raise ValueError("too long for a number")
