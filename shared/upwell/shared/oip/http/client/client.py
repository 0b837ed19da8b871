"""A client for servers of the Open Inference Protocol over HTTP/1.1, for `https://` beside `OipClient`."""

from __future__ import annotations

import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import ClassVar, Literal
from urllib.parse import quote

from upwell.shared.config.security import ClientSecurity, TlsFiles, check_endpoint
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.client_token import watch_token
from upwell.shared.oip.auth.tls_credentials import watch_client_context
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.grpc.client.client import LOOPBACK_ONLY, RemoteError, RemoteErrorKind, closed, parsed
from upwell.shared.oip.http import body_converters
from upwell.shared.oip.http.client.connection import CLOSED, HttpConnection
from upwell.shared.oip.http.client.connection_pool import CONNECT_S, Pool
from upwell.shared.oip.http.client.environment_proxy import ProxyRoute, proxy_for
from upwell.shared.oip.http.client.exchange import Exchange, Received, converse, failed
from upwell.shared.oip.http.replies import BINARY
from upwell.shared.platform.call_threads import CallThreads

_MOST_CALLS = 1024
"""Maximum number of concurrent calls, each with a thread; the agent uses far fewer."""

_TRACEPARENT = re.compile(r"[0-9a-f-]{1,100}")
_STANDARD_PORTS = {"http": 80, "https": 443}


class HttpPendingInfer:
    """An inference in progress. Thread-safe."""

    def __init__(self, exchange: Exchange, sent_bytes: int) -> None:
        self._exchange = exchange
        self.sent_bytes = sent_bytes
        """Size of the request's body."""

    def result(self, timeout_s: float | None = None) -> InferResponse:
        """Wait for the answer, for at most `timeout_s`.

        Raises `RemoteError`, or `TimeoutError` if the wait ends first; the call then goes on.
        """
        received = _succeeded(self._exchange.received(timeout_s))
        return parsed(lambda body: body_converters.parse_infer_response(body, received.head_bytes), received.body)

    @property
    def received_bytes(self) -> int:
        """Size of the answer's body; 0 if there is none yet or the call failed."""
        outcome = self._exchange.outcome
        return len(outcome.body) if isinstance(outcome, Received) and outcome.status == HTTPStatus.OK else 0

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._exchange.outcome is not None

    def cancel(self) -> None:
        """Cancel the call and close its connection, which the server notices. Harmless once it has ended."""
        self._exchange.settle(RemoteError(RemoteErrorKind.CANCELLED, "the call was cancelled"))

    def add_done_callback(self, callback: Callable[[HttpPendingInfer], None]) -> None:
        """Call `callback` at the end of the call, in a thread of the client (or here, if it has ended): it must not
        block.
        """
        self._exchange.on_end(lambda: callback(self))


class HttpClient:
    """Calls one server, over connections that are kept for the next call. Connects on the first call.

    `endpoint` is `https://HOST[:PORT][/PREFIX]` or `http://...`; `silence_s` is how long a connection on which a call
    waits may stay without a word before the kernel asks whether the other end is still there, `interface` the network
    interface to use, if not any. `HTTPS_PROXY` and `NO_PROXY` are read here. Changed certificate, key and token files
    take over with the next call. Every method may be called from any thread, takes the seconds it may last, and raises
    `RemoteError`. The constructor raises `ConfigError`.
    """

    drops_unsent: ClassVar[bool] = True
    """Whether cancelling drops unsent data."""

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity = LOOPBACK_ONLY,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        silence_s: float | None = None,
        interface: str = "",
    ) -> None:
        address = check_endpoint(endpoint, security)
        if not address.scheme:
            raise ConfigError.at(None, f"{endpoint!r} is not a URL; expected https://HOST")
        self.endpoint = endpoint
        self._address = address
        self._max_bytes = max_message_bytes
        self._context = watch_client_context(security.tls or TlsFiles()) if address.scheme == "https" else None
        self._token = watch_token(security.token_file)
        self._route = ProxyRoute(address, proxy_for(address), silence_s, interface)
        self._pool = Pool()
        self._threads = CallThreads(_MOST_CALLS, "http-call")
        self._lock = threading.Lock()
        self._under_way: set[Exchange] = set()
        self._closed = False

    def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Ask for one inference and wait. Raises `InvalidRequest` for tensors the protocol cannot carry."""
        return self.infer_async(request, timeout_s).result()

    def infer_async(self, request: InferRequest | bytes, timeout_s: float, traceparent: str = "") -> HttpPendingInfer:
        """Ask for one inference without waiting. Raises as `infer` does if the call cannot begin.

        The request may be given serialized (`converters.serialize_infer_request`). `traceparent` is the call's place in
        a trace, "" if none.
        """
        if isinstance(request, bytes):
            request = converters.parse_infer_request(request)
        head, raws = body_converters.write_infer_request(request)
        body = [head, *raws]
        sent_bytes = sum(map(len, body))
        if sent_bytes > self._max_bytes:
            text = f"RESOURCE_EXHAUSTED: the request takes {sent_bytes} bytes; at most {self._max_bytes} are sent"
            raise RemoteError(RemoteErrorKind.RESOURCE_EXHAUSTED, text)
        headers = [f"Content-Type: {BINARY}", f"Inference-Header-Content-Length: {len(head)}"]
        if _TRACEPARENT.fullmatch(traceparent):
            headers.append(f"traceparent: {traceparent}")
        path = f"{_model_path(request.model, request.version)}/infer"
        return HttpPendingInfer(self._start("POST", path, timeout_s, headers, body), sent_bytes)

    def warm_up(self, timeout_s: float, on_end: Callable[[bool], None]) -> None:
        """Connect now, with an empty call; `on_end` is called in another thread with whether it was answered."""
        exchange = self._start("GET", "/v2/health/live", timeout_s)

        def tell() -> None:
            outcome = exchange.outcome
            on_end(isinstance(outcome, Received) and outcome.status == HTTPStatus.OK)

        exchange.on_end(tell)

    def server_live(self, timeout_s: float) -> bool:
        """Whether the server runs."""
        received = _succeeded(self._get("/v2/health/live", timeout_s))
        return body_converters.parse_flag(received.body, "live") is not False

    def ready(self, timeout_s: float, model: str | None = None, version: str = "") -> bool:
        """Whether the server, or that model, can answer now. An unknown model is not ready."""
        received = self._get(f"{_model_path(model, version) if model is not None else '/v2/health'}/ready", timeout_s)
        said = body_converters.parse_flag(received.body, "ready")
        if received.status == HTTPStatus.OK:
            return said is not False
        # Triton sends 400 for anything that is not ready.
        if said is False or received.status == HTTPStatus.BAD_REQUEST:
            return False
        if model is not None and received.status == HTTPStatus.NOT_FOUND:
            return False
        raise received.error()

    def server_metadata(self, timeout_s: float) -> ServerMetadata:
        """Name, version and extensions of the server."""
        return parsed(body_converters.parse_server_metadata, _succeeded(self._get("/v2", timeout_s)).body)

    def metadata(self, model: str, timeout_s: float, version: str = "") -> ModelMetadata:
        """Inputs and outputs of a model."""
        received = _succeeded(self._get(_model_path(model, version), timeout_s))
        return parsed(body_converters.parse_model_metadata, received.body)

    def config_parameters(self, model: str, timeout_s: float) -> Mapping[str, str]:
        """See `OipClient.config_parameters`."""
        received = _succeeded(self._get(f"{_model_path(model, '')}/config", timeout_s))
        return parsed(body_converters.parse_config_parameters, received.body)

    def close(self) -> None:
        """Close the connections; calls in progress end with `RemoteError` CANCELLED. May be called twice."""
        with self._lock:
            was_closed, self._closed = self._closed, True
            under_way, self._under_way = self._under_way, set()
        self._pool.close()
        for exchange in under_way:
            exchange.settle(closed())
        if not was_closed:
            self._threads.shutdown(wait=False)

    def _get(self, path: str, timeout_s: float) -> Received:
        return self._start("GET", path, timeout_s).received(None)

    def _start(
        self,
        method: Literal["GET", "POST"],
        path: str,
        timeout_s: float,
        headers: Sequence[str] = (),
        body: Sequence[bytes | memoryview] = (),
    ) -> Exchange:
        if timeout_s <= 0:
            raise RemoteError(RemoteErrorKind.DEADLINE, "no time is left for the call")
        until_s = time.monotonic() + timeout_s
        lines = [f"{method} {self._address.prefix}{path} HTTP/1.1", f"Host: {self._host()}", *headers]
        lines += ["Accept-Encoding: identity", "User-Agent: upwell"]
        if method == "POST":
            lines.append(f"Content-Length: {sum(map(len, body))}")
        if not math.isinf(timeout_s):
            lines.append(f"Upwell-Timeout-Ms: {1e3 * timeout_s:.3f}")
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token.get()}")
        exchange = Exchange(["\r\n".join([*lines, "", ""]).encode("ascii"), *body], method, until_s)
        with self._lock:
            if self._closed:
                raise closed()
            self._under_way.add(exchange)
            self._threads.submit(self._run, exchange)
        return exchange

    def _host(self) -> str:
        host, port = self._address.bracketed_host, self._address.port
        return host if port == _STANDARD_PORTS[self._address.scheme] else f"{host}:{port}"

    def _run(self, exchange: Exchange) -> None:
        wire: HttpConnection | None = None
        try:
            if exchange.outcome is not None:
                return
            context = self._context.get() if self._context is not None else None
            wire = self._connected(exchange, context)
            try:
                received, is_reusable = converse(wire, exchange, self._max_bytes)
            except CLOSED:
                if not wire.was_unread:
                    raise
                # Closed while idle: the server never had the request, so it may be sent again.
                wire.close()
                wire = self._dialled(exchange, context)
                received, is_reusable = converse(wire, exchange, self._max_bytes)
        except Exception as error:  # noqa: BLE001 (whatever it is, somebody waits for the call's end)
            if wire is not None:
                wire.abort()
            exchange.settle(failed(error, exchange.until_s, is_unsent=wire is None))
        else:
            # Before the caller is informed, so that its next call finds the connection.
            if not (is_reusable and exchange.release() and self._pool.put(wire, context)):
                wire.close()
            exchange.settle(received)
        finally:
            with self._lock:
                self._under_way.discard(exchange)

    def _connected(self, exchange: Exchange, context: ssl.SSLContext | None) -> HttpConnection:
        wire = self._pool.take(context)
        if wire is None:
            return self._dialled(exchange, context)
        try:
            exchange.hold(wire.socket)
        except OSError:
            wire.close()
            raise
        wire.until_s = exchange.until_s
        return wire

    def _dialled(self, exchange: Exchange, context: ssl.SSLContext | None) -> HttpConnection:
        wire = self._route.dial(context, min(exchange.until_s, time.monotonic() + CONNECT_S), exchange.hold)
        wire.until_s = exchange.until_s
        return wire


def _model_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _succeeded(received: Received) -> Received:
    if received.status != HTTPStatus.OK:
        raise received.error()
    return received
