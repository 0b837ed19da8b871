"""Errors on the wire: the gRPC status of each Upwell error, how often each was answered, and when to retry.

Counts: calls that reach a `Dataplane` can be counted there; here the others are counted too: without a known token, for
models that the caller may not use, or with an unreadable message. It costs nothing if there is no error.

When to retry is sent in two forms, since clients differ: `grpc-retry-pushback-ms`, for gRPC's own retries (gRFC A6, if
the client's service config retries the status), and `google.rpc.RetryInfo` in `grpc-status-details-bin`, for client
libraries built on google.rpc.Status. As a client we read both, since servers differ as well.
"""

from __future__ import annotations

import email.utils
import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any as Anything

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from upwell.rpc.errors.v1 import retry_pb2
from upwell.shared import errors
from upwell.shared.errors import UpwellError
from upwell.shared.value_classes import value_class

MAX_TEXT_LENGTH = 1000
"""Maximum length of a text: it is sent in HTTP/2 trailers, which are limited to a few kilobytes."""

# `ConfigError` is not here: it tells the author of this machine's files what is wrong with them.
STATUSES: Mapping[type[UpwellError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: grpc.StatusCode.NOT_FOUND,
    errors.Refused: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Superseded: grpc.StatusCode.ABORTED,
    errors.NoAllowedRoute: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.NotOffered: grpc.StatusCode.UNIMPLEMENTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotLoaded: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CallerLeft: grpc.StatusCode.CANCELLED,
    errors.ModelFailed: grpc.StatusCode.INTERNAL,
    errors.CloudFailed: grpc.StatusCode.UNAVAILABLE,
}


@value_class
class Status:
    """What the caller gets. `retry_after_s`: seconds after which a retry may succeed; None if unknown."""

    code: grpc.StatusCode
    text: str
    retry_after_s: float | None = None


INTERNAL = Status(grpc.StatusCode.INTERNAL, "internal error")
"""The status of errors outside the catalogue: bugs, whose text must not reach the caller."""


def status_of(error: Exception) -> Status:
    """The status of an error: that of `STATUSES` with the error's own sentence, or `INTERNAL`."""
    for kind in type(error).__mro__:
        if kind in STATUSES:
            text = str(error).encode(errors="backslashreplace").decode()  # a file's name may not be text
            text = errors.shortened(text, MAX_TEXT_LENGTH)
            return Status(STATUSES[kind], text, error.retry_after_s if isinstance(error, errors.Refused) else None)
    return INTERNAL


_lock = threading.Lock()
_counts: Counter[str] = Counter()


def note_error_answer(status: str) -> None:
    """Count a call, or message of a stream, that is answered with an error: gRPC's name, or `HTTP 404` and such."""
    with _lock:
        _counts[status] += 1


def errors_by_status() -> Mapping[str, int]:
    """The counts since the process began."""
    with _lock:
        return dict(_counts)


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
