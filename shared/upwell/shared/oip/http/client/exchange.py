"""One request over HTTP/1.1 and its answer: waiting, cancelling, and errors; on a pooled connection or one of its own.

Both the time of the whole call, however slowly bytes come, and the size of the answer are bounded. Redirects are not
followed, and the environment's proxy is used.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import grpc

from upwell.shared.config.security import ClientSecurity, TlsFiles, check_endpoint
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.client_token import watch_token
from upwell.shared.oip.auth.tls_credentials import watch_client_context
from upwell.shared.oip.grpc.client.client import KINDS, RemoteError, RemoteErrorKind
from upwell.shared.oip.http.body_converters import error_text
from upwell.shared.oip.http.client.connection import HttpConnection
from upwell.shared.oip.http.client.connection_pool import CONNECT_S
from upwell.shared.oip.http.client.environment_proxy import ProxyRoute, proxy_for
from upwell.shared.oip.http.replies import CLIENT_CLOSED_REQUEST, RETRY_MS_HEADER, STATUS_HEADER
from upwell.shared.oip.retry_after import told_by_headers

STATUS_KINDS: Mapping[int, RemoteErrorKind] = {
    HTTPStatus.BAD_REQUEST: RemoteErrorKind.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: RemoteErrorKind.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: RemoteErrorKind.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: RemoteErrorKind.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: RemoteErrorKind.UNIMPLEMENTED,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: RemoteErrorKind.UNAVAILABLE,
    HTTPStatus.REQUEST_TIMEOUT: RemoteErrorKind.UNAVAILABLE,
    HTTPStatus.CONFLICT: RemoteErrorKind.ABORTED,
    HTTPStatus.LENGTH_REQUIRED: RemoteErrorKind.UNIMPLEMENTED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: RemoteErrorKind.RESOURCE_EXHAUSTED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: RemoteErrorKind.UNIMPLEMENTED,
    HTTPStatus.UNPROCESSABLE_ENTITY: RemoteErrorKind.INVALID_ARGUMENT,
    HTTPStatus.TOO_MANY_REQUESTS: RemoteErrorKind.RESOURCE_EXHAUSTED,
    CLIENT_CLOSED_REQUEST: RemoteErrorKind.CANCELLED,
    HTTPStatus.NOT_IMPLEMENTED: RemoteErrorKind.UNIMPLEMENTED,
    HTTPStatus.BAD_GATEWAY: RemoteErrorKind.UNAVAILABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: RemoteErrorKind.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: RemoteErrorKind.DEADLINE,
}
"""Maps HTTP statuses to error kinds if the answer does not name the gRPC status; all others are INTERNAL."""

_MAX_ERROR_BYTES = 64 << 10
_PIECE_BYTES = 64 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Received:
    """One complete answer. `head_bytes` of the body are JSON; `status_name` is gRPC's name of an error, if given, and
    `retry_after_s` the seconds until a retry."""

    status: int
    head_bytes: int
    status_name: str
    body: bytes
    retry_after_s: float | None = None

    def error(self) -> RemoteError:
        """The error for an answer with another status than 200."""
        kind = STATUS_KINDS.get(self.status, RemoteErrorKind.INTERNAL)
        if self.status < HTTPStatus.BAD_REQUEST:
            return RemoteError(RemoteErrorKind.GARBAGE, f"HTTP {self.status}: expected 200; redirects are not followed")
        code = grpc.StatusCode.__members__.get(self.status_name)
        if code is not None and code is not grpc.StatusCode.OK:
            kind = KINDS.get(code, RemoteErrorKind.INTERNAL)
        what = f"HTTP {self.status}" if code is None else code.name
        return RemoteError(kind, f"{what}: {error_text(self.body) or 'no details'}", self.retry_after_s)


class Exchange:
    """A call in progress. Thread-safe; the first of answer, error and `cancel` wins."""

    def __init__(self, pieces: Sequence[bytes | memoryview], method: str, until_s: float) -> None:
        self.pieces = pieces
        self.method = method
        self.until_s = until_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._outcome: Received | RemoteError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._socket: socket.socket | None = None

    def hold(self, connected: socket.socket) -> None:
        """From now on the call waits on that socket. Raises `OSError` if the call has ended."""
        with self._lock:
            if self._outcome is not None:
                raise ConnectionAbortedError("the call was cancelled")
            self._socket = connected

    def release(self) -> bool:
        """Stop waiting on the socket, so that another call can use it; returns False if the call has ended."""
        with self._lock:
            self._socket = None
            return self._outcome is None

    def settle(self, outcome: Received | RemoteError) -> None:
        """End the call with this outcome, unless it has ended. Wakes the thread that waits on its socket."""
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
            callbacks, self._callbacks = self._callbacks, []
            if isinstance(outcome, RemoteError) and self._socket is not None:
                with suppress(OSError):  # not connected, or closed
                    # Not the TLS socket's method, with which the waiting thread could read on without TLS.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            self._socket = None
        self._ended.set()
        for callback in callbacks:
            callback()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call has ended, or now if it has."""
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                return
        callback()

    @property
    def outcome(self) -> Received | RemoteError | None:
        """The outcome; None while the call is in progress."""
        return self._outcome

    def received(self, timeout_s: float | None) -> Received:
        """Wait for the answer, for at most `timeout_s`, and never beyond the deadline.

        Raises `RemoteError`, or `TimeoutError` if the wait ends first; the call then goes on.
        """
        left_s = max(0.0, self.until_s - time.monotonic())
        wait_s = left_s if timeout_s is None else min(timeout_s, left_s)
        if not self._ended.wait(None if wait_s == float("inf") else wait_s):
            if timeout_s is not None and timeout_s < left_s:
                raise TimeoutError(f"no answer within {timeout_s} s; the call is still in progress")
            self.settle(late())
        outcome = self._outcome
        assert outcome is not None  # noqa: S101  it has ended
        if isinstance(outcome, RemoteError):
            raise RemoteError(outcome.kind, str(outcome), outcome.retry_after_s, is_unsent=outcome.is_unsent)
        return outcome


def late() -> RemoteError:
    """The error for a passed deadline."""
    return RemoteError(RemoteErrorKind.DEADLINE, "DEADLINE_EXCEEDED: no answer in time")


def converse(wire: HttpConnection, exchange: Exchange, max_bytes: int) -> tuple[Received, bool]:
    """Send the request and read the answer; returns it, and whether the connection can take another request.

    Raises `RemoteError` (RESOURCE_EXHAUSTED) for an answer of more than `max_bytes`, before memory is allocated, and
    the errors that `failed` knows.
    """
    refusal: OSError | None = None
    try:
        wire.send(exchange.pieces)
    except TimeoutError:
        raise
    except OSError as error:  # it may have answered before it closed
        refusal = error
    try:
        response = wire.response(exchange.method)
        is_ok = response.status == HTTPStatus.OK
        body, is_whole = _read(response, max_bytes if is_ok else _MAX_ERROR_BYTES, may_cut=not is_ok)
    except OSError as error:
        raise refusal or error from None
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise RemoteError(RemoteErrorKind.GARBAGE, "the answer is compressed, which was not requested")
    head = response.headers.get("Inference-Header-Content-Length", "").strip()
    if head and not (head.isascii() and head.isdigit() and len(head) < 19 and int(head) <= len(body)):
        raise RemoteError(
            RemoteErrorKind.GARBAGE, "the answer's Inference-Header-Content-Length is not a size within it"
        )
    head_bytes = int(head) if head else len(body)
    headers = response.headers
    name = headers.get(STATUS_HEADER, "")
    # Upwell's servers always send whole seconds for clients that need them, and milliseconds only if the time is known.
    after_s = told_by_headers(headers.get(RETRY_MS_HEADER, ""), "" if name else headers.get("Retry-After", ""))
    received = Received(response.status, head_bytes, name, body, after_s)
    return received, is_whole and refusal is None and not response.will_close


def _read(response: http.client.HTTPResponse, max_bytes: int, *, may_cut: bool) -> tuple[bytes, bool]:
    """The body, and whether it is complete."""
    length = response.length
    if length is not None and length > max_bytes and not may_cut:
        raise _too_large(f"{length} bytes", max_bytes)
    if length is not None and length <= max_bytes:
        return response.read(), True
    parts: list[bytes] = []
    size_bytes = 0
    while part := response.read(_PIECE_BYTES):
        size_bytes += len(part)
        parts.append(part)
        if size_bytes > max_bytes:
            if may_cut:
                return b"".join(parts)[:max_bytes], False
            raise _too_large("more", max_bytes)
    return b"".join(parts), True


def _too_large(size: str, max_bytes: int) -> RemoteError:
    text = f"RESOURCE_EXHAUSTED: the answer takes {size}; at most {max_bytes} bytes are allowed"
    return RemoteError(RemoteErrorKind.RESOURCE_EXHAUSTED, text)


def failed(error: Exception, until_s: float, *, is_unsent: bool = False) -> RemoteError:
    """The `RemoteError` for an exception during a call; call it at once, since it compares the time with the
    deadline. `is_unsent`: see `RemoteError`."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, TimeoutError) and time.monotonic() >= until_s:
        return late()
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"UNAVAILABLE: the certificate: {error.verify_message}"
        return RemoteError(RemoteErrorKind.CERTIFICATE, text, is_unsent=is_unsent)
    if isinstance(error, (OSError, http.client.IncompleteRead)):
        text = f"UNAVAILABLE: {error or type(error).__name__}"
        return RemoteError(RemoteErrorKind.UNAVAILABLE, text, is_unsent=is_unsent)
    if isinstance(error, http.client.HTTPException):
        return RemoteError(RemoteErrorKind.GARBAGE, f"the answer is not HTTP ({type(error).__name__})")
    _log.error("a call over HTTP failed", exc_info=error)
    return RemoteError(RemoteErrorKind.INTERNAL, "INTERNAL: the answer could not be read")


class HttpsCaller:
    """Calls one server. `endpoint` is `https://HOST[:PORT]`. Changed PEM and token files take effect with the next
    call.

    Raises `ConfigError` for a wrong endpoint, and for files that are wrong now.
    """

    def __init__(self, endpoint: str, security: ClientSecurity) -> None:
        address = check_endpoint(endpoint, security)
        if address.scheme != "https":
            raise ConfigError.at(None, f"{endpoint!r} is not an address; expected https://HOST:PORT")
        self.endpoint = endpoint
        self._address = address
        self._context = watch_client_context(security.tls or TlsFiles())
        self._token = watch_token(security.token_file)
        self._route = ProxyRoute(address, proxy_for(address), None)

    def call(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"",
        timeout_s: float = 30.0, max_bytes: int = 4 << 20,
    ) -> Received:  # fmt: skip
        """The answer, whatever its status. Raises `RemoteError` if none came, or one larger than `max_bytes`."""
        until_s = time.monotonic() + timeout_s
        host = f"Host: {self._address.authority}"
        lines = [f"{method} {self._address.prefix}{path} HTTP/1.1", host, "Connection: close"]
        lines += ["Accept-Encoding: identity", "User-Agent: upwell", f"Content-Length: {len(body)}"]
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token.get()}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        exchange = Exchange(["\r\n".join([*lines, "", ""]).encode("ascii"), body], method, until_s)
        is_unsent = True
        try:
            dial_until_s = min(until_s, time.monotonic() + CONNECT_S)
            with self._route.dial(self._context.get(), dial_until_s, exchange.hold) as wire:
                is_unsent = False
                wire.until_s = until_s
                received, _ = converse(wire, exchange, max_bytes)
                return received
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 (`failed` says what it means)
            raise failed(error, until_s, is_unsent=is_unsent) from None
