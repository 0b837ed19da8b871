"""A gRPC client for one server, or for all servers of a name: the channel, its options, and its credentials."""

from __future__ import annotations

import enum
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

import grpc

from upwell.shared.config.addresses import Address
from upwell.shared.config.security import ClientSecurity, check_endpoint
from upwell.shared.errors import ConfigError, InvalidRequest, UpwellError
from upwell.shared.oip.auth.client_token import watch_token
from upwell.shared.oip.auth.tls_credentials import PemFiles, channel_credentials, watch_pem
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES, MAX_UNUSUAL_BYTES
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.grpc.client.interface_relay import InterfaceRelay
from upwell.shared.oip.grpc.server.servicer import METHODS, SERVICE
from upwell.shared.oip.retry_after import told_by_trailers
from upwell.shared.platform.watched_files import WatchedFiles

Options: TypeAlias = tuple[tuple[str, int | str], ...]

_OPTIONS: Options = (
    # A new client opens a new connection instead of sharing one that may be half-open.
    ("grpc.use_local_subchannel_pool", 1),
    # After an outage the link is back within about a second; this also limits one attempt to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # gRPC only resends calls that a server refused while closing the connection; there is no retry policy. Retries are
    # decided where the deadline and the budget are known.
    ("grpc.enable_retries", 1),
)


def channel_options(address: Address, max_message_bytes: int, *, checks_health: bool) -> Options:
    """gRPC options of a channel to `address`.

    With several servers behind a name, calls go round robin. A server that cannot be reached gets no calls, nor, with
    `checks_health`, one whose health is NOT_SERVING; a server without the health service counts as healthy. The name is
    resolved again when a connection ends.
    """
    limits = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
    proxy = (("grpc.enable_http_proxy", 0),) if address.is_loopback else ()
    if address.name_server is None:
        return (*_OPTIONS, *limits, *proxy)
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if checks_health:
        config["healthCheckConfig"] = {"serviceName": ""}
    return (*_OPTIONS, *limits, *proxy, ("grpc.service_config", json.dumps(config)))


@dataclass(frozen=True)
class ChannelSource:
    """A channel, the certificates it was made with, and its methods, which take and return serialized messages."""

    pem: PemFiles | None
    channel: grpc.Channel
    methods: Mapping[str, Any]

    @classmethod
    def open(
        cls, endpoint: str, options: Options, pem: PemFiles | None, token: WatchedFiles[str] | None
    ) -> ChannelSource:
        """Create a channel, which connects on its first call. `token` is for gRPC's own health checks."""
        if pem is None:
            channel = grpc.insecure_channel(endpoint, options)
        else:
            credentials = channel_credentials(pem)
            if token is not None:
                calls = grpc.metadata_call_credentials(_HealthToken(token))
                credentials = grpc.composite_channel_credentials(credentials, calls)
            channel = grpc.secure_channel(endpoint, credentials, options)
        calls_of: dict[str, Any] = {
            name: channel.unary_unary(f"/{SERVICE}/{name}") for name in (*METHODS, "ModelConfig")
        }
        return cls(pem, channel, calls_of)


class _HealthToken(grpc.AuthMetadataPlugin):
    """Adds the token to gRPC's own health checks; all other calls carry theirs."""

    def __init__(self, token: WatchedFiles[str]) -> None:
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        if not context.service_url.endswith("/grpc.health.v1.Health"):
            callback((), None)
            return
        try:
            callback((("authorization", f"Bearer {self._token.get()}"),), None)
        except ConfigError as error:
            callback((), error)


T = TypeVar("T")


class RemoteErrorKind(enum.Enum):
    """What went wrong at or on the way to the server.

    `GARBAGE`: its answer cannot be used. `CERTIFICATE`: its certificate is not trusted (expired, wrong name, unknown
    issuer), so nothing was sent.
    """

    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    FAILED_PRECONDITION = "failed_precondition"
    UNAUTHENTICATED = "unauthenticated"
    CERTIFICATE = "certificate"
    PERMISSION_DENIED = "permission_denied"
    INTERNAL = "internal"
    GARBAGE = "garbage"
    ABORTED = "aborted"
    UNIMPLEMENTED = "unimplemented"


class RemoteError(UpwellError):
    """A call gave no usable answer. `kind` says why; the text quotes the server.

    `retry_after_s`: seconds after which the server suggests a retry; None if it does not. `is_unsent`: there was no
    connection, so nothing of the request has left.
    """

    def __init__(
        self, kind: RemoteErrorKind, text: str, retry_after_s: float | None = None, *, is_unsent: bool = False
    ) -> None:
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.is_unsent = is_unsent
        super().__init__(text)


KINDS: Mapping[grpc.StatusCode, RemoteErrorKind] = {
    grpc.StatusCode.UNAVAILABLE: RemoteErrorKind.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: RemoteErrorKind.DEADLINE,
    grpc.StatusCode.CANCELLED: RemoteErrorKind.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RemoteErrorKind.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INVALID_ARGUMENT: RemoteErrorKind.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE: RemoteErrorKind.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND: RemoteErrorKind.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION: RemoteErrorKind.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED: RemoteErrorKind.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: RemoteErrorKind.PERMISSION_DENIED,
    grpc.StatusCode.ABORTED: RemoteErrorKind.ABORTED,
    grpc.StatusCode.UNIMPLEMENTED: RemoteErrorKind.UNIMPLEMENTED,
    grpc.StatusCode.DATA_LOSS: RemoteErrorKind.GARBAGE,
}
"""Maps gRPC statuses to error kinds; all others are INTERNAL."""

# gRPC has no status for this: these are words of OpenSSL and of gRPC's own check of the name.
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed", "is not in peer certificate")
_NO_CONNECTION = ("failed to connect", "connections to all backends failing")

LOOPBACK_ONLY = ClientSecurity()
"""No protection; only for servers on this machine."""


class PendingInfer:
    """An inference in progress. Thread-safe."""

    def __init__(self, future: Any, sent_bytes: int) -> None:
        self._future = future
        self.sent_bytes = sent_bytes
        """Size of the serialized request."""

    def result(self, timeout_s: float | None = None) -> InferResponse:
        """Wait for the answer, for at most `timeout_s`.

        Raises `RemoteError`, or `TimeoutError` if the wait ends first; the call then goes on.
        """
        try:
            data: bytes | None = self._future.result(timeout_s)
        except grpc.FutureTimeoutError:
            raise TimeoutError(f"no answer within {timeout_s} s; the call is still in progress") from None
        except grpc.FutureCancelledError:
            raise RemoteError(RemoteErrorKind.CANCELLED, "the call was cancelled") from None
        except grpc.RpcError as error:
            raise _remote_error(error) from None
        return parsed(converters.parse_infer_response, data)

    @property
    def received_bytes(self) -> int:
        """Size of the serialized answer; 0 if there is none yet or the call failed."""
        if not self._future.done() or self._future.code() is not grpc.StatusCode.OK:
            return 0
        return len(self._future.result() or b"")

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return bool(self._future.done())

    def cancel(self) -> None:
        """Cancel the call; the server is informed. Harmless once it has ended."""
        self._future.cancel()

    def add_done_callback(self, callback: Callable[[PendingInfer], None]) -> None:
        """Call `callback` at the end of the call, in gRPC's thread (or here, if it has ended): it must not block."""
        self._future.add_done_callback(lambda _: callback(self))


class OipClient:
    """Calls one server. Connects on the first call.

    `endpoint` is `HOST:PORT`, `unix:PATH`, or `dns:///NAME:PORT` for all servers of that name; `options` are further
    gRPC channel options, `interface` the network interface to use, "" for any. Changed certificate, key and token files
    take effect with the next call. Every method is thread-safe, takes its time limit in seconds, and raises
    `RemoteError`. The constructor raises `ConfigError`.
    """

    drops_unsent: ClassVar[bool] = False
    """Whether cancelling drops unsent data; gRPC and the kernel still send what they hold."""

    def __init__(
        self,
        endpoint: str,
        security: ClientSecurity = LOOPBACK_ONLY,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        options: Sequence[tuple[str, int | str]] = (),
        interface: str = "",
    ) -> None:
        address = check_endpoint(endpoint, security)
        self.endpoint = self._target = str(address)
        self._pem = watch_pem(security.tls) if security.tls else None
        self._token = watch_token(security.token_file)
        # gRPC sends a token with its health checks only over TLS; without one, a server that requires it would refuse
        # them.
        checks_health = self._token is None or self._pem is not None
        self._health_token = self._token if address.name_server is not None else None
        self._options = (*channel_options(address, max_message_bytes, checks_health=checks_health), *options)
        self._relay = InterfaceRelay(address, interface) if interface else None  # after what may fail
        if self._relay is not None:
            self._target, self._options = self._relay.target, (*self._options, *self._relay.options)
        self._lock = threading.Lock()
        self._link: ChannelSource | None = None
        self._closed = False

    def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Ask for one inference and wait. Raises `InvalidRequest` for tensors the protocol cannot carry."""
        data = self._call("ModelInfer", converters.serialize_infer_request(request), timeout_s)
        return parsed(converters.parse_infer_response, data)

    def infer_async(self, request: InferRequest | bytes, timeout_s: float, traceparent: str = "") -> PendingInfer:
        """Ask for one inference without waiting. Raises as `infer` does if the call cannot begin.

        The request may be given serialized (`converters.serialize_infer_request`), to be sent more than once.
        `traceparent` is the call's place in a trace (a `telemetry.tracing.Place` as text), "" if none.
        """
        data = request if isinstance(request, bytes) else converters.serialize_infer_request(request)
        return PendingInfer(self._start("ModelInfer", data, timeout_s, traceparent), len(data))

    def warm_up(self, timeout_s: float, on_end: Callable[[bool], None]) -> None:
        """Connect now, with an empty call; `on_end` is called in gRPC's thread with whether it was answered."""
        future = self._start("ServerLive", b"", timeout_s)
        future.add_done_callback(lambda done: on_end(done.code() is grpc.StatusCode.OK))

    def server_live(self, timeout_s: float) -> bool:
        """Whether the server runs."""
        return parsed(converters.parse_flag, self._call("ServerLive", b"", timeout_s))

    def ready(self, timeout_s: float, model: str | None = None, version: str = "") -> bool:
        """Whether the server, or that model, can answer now. An unknown model is not ready."""
        if model is None:
            return parsed(converters.parse_flag, self._call("ServerReady", b"", timeout_s))
        try:
            data = self._call("ModelReady", converters.serialize_model_name(model, version), timeout_s)
        except RemoteError as error:
            if error.kind is RemoteErrorKind.NOT_FOUND:
                return False
            raise
        return parsed(converters.parse_flag, data)

    def server_metadata(self, timeout_s: float) -> ServerMetadata:
        """Name, version and extensions of the server."""
        return parsed(converters.parse_server_metadata, self._call("ServerMetadata", b"", timeout_s))

    def metadata(self, model: str, timeout_s: float, version: str = "") -> ModelMetadata:
        """Inputs and outputs of a model."""
        data = self._call("ModelMetadata", converters.serialize_model_name(model, version), timeout_s)
        return parsed(converters.parse_model_metadata, data)

    def config_parameters(self, model: str, timeout_s: float) -> Mapping[str, str]:
        """The `parameters` of a model's configuration, an extension of the protocol."""
        from upwell.shared.oip.codec import triton_messages  # rarely needed, and it imports protobuf's JSON

        data = self._call("ModelConfig", triton_messages.serialize_config_request(model), timeout_s)
        return parsed(triton_messages.parse_config_parameters, data)

    def close(self) -> None:
        """Close the connection; calls in progress end with `RemoteError` CANCELLED. May be called twice."""
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            link.channel.close()
        if self._relay is not None:
            self._relay.close()

    def _call(self, method: str, data: bytes, timeout_s: float) -> bytes | None:
        try:
            answer: bytes | None = self._method(method)(data, **self._arguments(timeout_s))
        except grpc.RpcError as error:
            raise _remote_error(error) from None
        except ValueError:
            raise closed() from None
        if method != "ModelInfer" and answer is not None and len(answer) > MAX_UNUSUAL_BYTES:
            text = f"the server's answer takes {len(answer)} bytes; at most {MAX_UNUSUAL_BYTES} are taken for {method}"
            raise RemoteError(RemoteErrorKind.GARBAGE, text)
        return answer

    def _start(self, method: str, data: bytes, timeout_s: float, traceparent: str = "") -> Any:
        try:
            return self._method(method).future(data, **self._arguments(timeout_s, traceparent))
        except ValueError:
            raise closed() from None

    def _method(self, name: str) -> Any:
        pem = self._pem.get() if self._pem else None
        with self._lock:
            if self._closed:
                raise closed()
            if self._link is None or self._link.pem is not pem:
                # A former channel is not closed but dropped, so that calls in progress can finish.
                self._link = ChannelSource.open(self._target, self._options, pem, self._health_token)
            return self._link.methods[name]

    def _arguments(self, timeout_s: float, traceparent: str = "") -> dict[str, Any]:
        if timeout_s <= 0:
            raise RemoteError(RemoteErrorKind.DEADLINE, "no time is left for the call")
        metadata = (("authorization", f"Bearer {self._token.get()}"),) if self._token else None
        if traceparent:
            metadata = (*(metadata or ()), ("traceparent", traceparent))
        return {"timeout": None if math.isinf(timeout_s) else timeout_s, "metadata": metadata}


def parsed(parse: Callable[[bytes], T], data: bytes | None) -> T:
    """The server's message, parsed by `parse`. Raises `RemoteError` (GARBAGE) instead of `InvalidRequest`."""
    if data is None:  # gRPC returns None if the status is OK without a complete message
        raise RemoteError(RemoteErrorKind.GARBAGE, "the server's answer has no message")
    try:
        return parse(data)
    except InvalidRequest as error:
        raise RemoteError(RemoteErrorKind.GARBAGE, f"the server's answer cannot be used: {error}") from None


def _remote_error(error: grpc.RpcError) -> RemoteError:
    code, details = error.code(), error.details() or "no details"
    kind = KINDS.get(code, RemoteErrorKind.INTERNAL)
    # Only for errors without a connection, not for the server's own words.
    is_unsent = kind is RemoteErrorKind.UNAVAILABLE and details.startswith(_NO_CONNECTION)
    if is_unsent and any(words in details for words in _UNTRUSTED):
        kind = RemoteErrorKind.CERTIFICATE
    retry_after_s = told_by_trailers(error.trailing_metadata())
    return RemoteError(kind, f"{code.name}: {details}", retry_after_s, is_unsent=is_unsent)


def closed() -> RemoteError:
    """The error of every call on a closed client."""
    return RemoteError(RemoteErrorKind.CANCELLED, "the client is closed")
