"""Errors on the wire: the gRPC status of each Upwell error, and how often each was answered.

Calls that reach a `Dataplane` can be counted there; here the others are counted too: without a known token, for
models that the caller may not use, or with an unreadable message. It costs nothing if there is no error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import grpc

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
