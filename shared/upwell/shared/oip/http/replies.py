"""HTTP replies, and the reply for each error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import grpc

from upwell.shared.errors import UpwellError
from upwell.shared.oip.error_statuses import status_of
from upwell.shared.oip.retry_after import milliseconds

STATUS_HEADER = "Upwell-Status"
"""The header with gRPC's name of an error's status, since HTTP has fewer statuses."""

RETRY_MS_HEADER = "Retry-After-Ms"
"""The header with the milliseconds until a retry, if known: a queue may drain in less than the whole seconds of
Retry-After."""

JSON = "application/json"
BINARY = "application/octet-stream"

CLIENT_CLOSED_REQUEST = 499
"""The status for a caller that has left, as proxies log it."""

_RETRY_AFTER_S = 1
"""The default of Retry-After, in whole seconds."""

HTTP_STATUSES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.CANCELLED: CLIENT_CLOSED_REQUEST,
    grpc.StatusCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""Maps gRPC statuses to HTTP statuses as in google.rpc.Code."""

_TRY_AGAIN = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Rejected(UpwellError):
    """The HTTP request cannot be served as it is; `status` and `headers` are those of the reply."""

    def __init__(self, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.status = status
        self.headers = tuple(headers)
        super().__init__(text)


@dataclass(frozen=True)
class Reply:
    """A reply: its status, its headers except length, date and connection, and the pieces of its body."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: tuple[bytes | memoryview, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Length of the body in bytes."""
        return sum(len(piece) for piece in self.body)


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def write_json(value: object) -> bytes:
    """`value` as JSON in ASCII."""
    return _ENCODER.encode(value).encode()


def json_reply(value: object, status: int = HTTPStatus.OK, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    """`value` as JSON in ASCII."""
    return Reply(status, (("Content-Type", JSON), *headers), (write_json(value),))


def error_reply(error: Exception) -> Reply:
    """`{"error": ...}` with the error's status from the catalogue, or from HTTP itself."""
    after_ms = None
    if isinstance(error, Rejected):
        status, text, headers = error.status, str(error), error.headers
    else:
        found = status_of(error)
        status, text, headers = HTTP_STATUSES[found.code], found.text, ((STATUS_HEADER, found.code.name),)
        after_ms = None if found.retry_after_s is None else milliseconds(found.retry_after_s)
    if status == HTTPStatus.UNAUTHORIZED:
        headers = (*headers, ("WWW-Authenticate", "Bearer"))
    if status in _TRY_AGAIN:
        headers = (*headers, ("Retry-After", str(max(_RETRY_AFTER_S, math.ceil((after_ms or 0) / 1e3)))))
        if after_ms is not None:
            headers = (*headers, (RETRY_MS_HEADER, str(after_ms)))
    return json_reply({"error": text}, status, headers)
