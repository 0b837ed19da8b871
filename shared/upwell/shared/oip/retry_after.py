"""When to retry a refused request, as the protocols say it.

gRPC sends it in two forms, since clients differ: `grpc-retry-pushback-ms`, for gRPC's own retries (gRFC A6, if the
client's service config retries the status), and `google.rpc.RetryInfo` in `grpc-status-details-bin`, for client
libraries built on google.rpc.Status. As a client we read both, since servers differ as well. HTTP has headers.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Iterable
from typing import Any as Anything

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from upwell.rpc.errors.v1 import retry_pb2
from upwell.shared.oip.error_statuses import Status

_PUSHBACK = "grpc-retry-pushback-ms"
_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_LONGEST_MS = 24 * 3600 * 1000
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
_SECONDS = re.compile(r"[0-9]{1,9}")
_MAX_DETAILS_BYTES = 8192


def trailers(status: Status) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata of an error: empty unless it says when to retry."""
    if status.retry_after_s is None:
        return ()
    after_ms = milliseconds(status.retry_after_s)
    return ((_PUSHBACK, str(after_ms)), (_DETAILS, _details(status, after_ms)))


def milliseconds(retry_after_s: float) -> int:
    """The time in ms as it is sent: at least a millisecond, at most a day."""
    return math.ceil(1e3 * min(max(retry_after_s, 1e-3), _LONGEST_MS / 1e3))


def _details(status: Status, after_ms: int) -> bytes:
    """A serialized `google.rpc.Status` with one `RetryInfo`."""
    info = retry_pb2.RetryInfo()
    info.retry_delay.FromMilliseconds(after_ms)
    detail = Any(type_url=_RETRY_INFO, value=info.SerializeToString(deterministic=True))
    return retry_pb2.Status(code=status.code.value[0], message=status.text, details=[detail]).SerializeToString()


def told_by_trailers(trailing: Iterable[Anything] | None) -> float | None:
    """Seconds after which a retry may succeed, from an error's trailing metadata; None if it does not say.

    The trailers are untrusted: what cannot be parsed is ignored.
    """
    said = dict(trailing or ())
    pushback, details = said.get(_PUSHBACK), said.get(_DETAILS)
    if isinstance(pushback, str) and _MILLISECONDS.fullmatch(pushback):
        return int(pushback) / 1e3
    if isinstance(details, bytes) and len(details) <= _MAX_DETAILS_BYTES:
        return _retry_delay_s(details)
    return None


def told_by_headers(after_ms: str, seconds: str) -> float | None:
    """The same from the headers `Retry-After-Ms` and `Retry-After`, "" if missing.

    A date in `Retry-After` is ignored: clocks of devices are often wrong.
    """
    if _MILLISECONDS.fullmatch(after_ms.strip()):
        return int(after_ms) / 1e3
    return float(seconds) if _SECONDS.fullmatch(seconds.strip()) else None


def retry_after_s(text: str, now_unix_s: float) -> float:
    """The seconds to wait of the header `Retry-After`, in seconds or a date: at most a day, 0 for anything else.

    Only for servers whose dates are trusted; see `told_by_headers`.
    """
    try:
        is_number = text.isascii() and text.isdigit()
        pause_s = float(text) if is_number else email.utils.parsedate_to_datetime(text).timestamp() - now_unix_s
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, pause_s), _LONGEST_MS / 1e3)


def _retry_delay_s(details: bytes) -> float | None:
    """The delay of the `RetryInfo` in a serialized `google.rpc.Status`."""
    try:
        for detail in retry_pb2.Status.FromString(details).details:
            if detail.type_url == _RETRY_INFO:
                delay = retry_pb2.RetryInfo.FromString(detail.value).retry_delay
                delay_s = delay.seconds + delay.nanos / 1e9
                return delay_s if 0 < delay_s < 2**32 else None
    except DecodeError:
        return None
    return None
