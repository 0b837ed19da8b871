"""A client's way to a server, or to all servers of a name: the gRPC channel, its options, and what it proves."""

from __future__ import annotations

import enum
import json
import math
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

import grpc

from upwell.shared.config.security import Address, ClientSecurity, check_endpoint
from upwell.shared.errors import ConfigError, InvalidRequest, UpwellError
from upwell.shared.oip.auth.tls import PemFiles, channel_credentials, watch_pem
from upwell.shared.oip.auth.tokens import watch_token
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.grpc.interface_relay import InterfaceRelay
from upwell.shared.oip.grpc.retrying import told_by_trailers
from upwell.shared.oip.grpc.server import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.grpc.servicer import METHODS, SERVICE
from upwell.shared.oip.grpc.streams import METHOD as STREAM
from upwell.shared.platform.watched_files import WatchedFiles

Options: TypeAlias = tuple[tuple[str, int | str], ...]

_OPTIONS: Options = (
    # A new client makes a new connection instead of joining one that may be half-open.
    ("grpc.use_local_subchannel_pool", 1),
    # After an outage the link is back within about a second; this is also the limit on one attempt to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # gRPC sends again what a connection that its server closes has not taken any more, and nothing else: there is no
    # retry policy. Whether to try again is decided where the deadline and the budget are known.
    ("grpc.enable_retries", 1),
)


def channel_options(address: Address, max_message_bytes: int, *, checks_health: bool) -> Options:
    """How gRPC is to treat a channel to `address`.

    Of several servers behind a name each call goes to the next one. One that cannot be reached gets none, nor, with
    `checks_health`, one whose health says NOT_SERVING; one that knows no health service counts as healthy. The name is
    looked up again when a connection ends.
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
    """A channel, the certificates it was made with, and its methods, which take and give serialized messages."""

    pem: PemFiles | None
    channel: grpc.Channel
    methods: Mapping[str, Any]

    @classmethod
    def open(
        cls, endpoint: str, options: Options, pem: PemFiles | None, token: WatchedFiles[str] | None
    ) -> ChannelSource:
        """Make a channel, which connects with its first call. `token` is what gRPC's own calls for health bring."""
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
        return cls(pem, channel, {**calls_of, STREAM: channel.stream_stream(f"/{SERVICE}/{STREAM}")})


class _HealthToken(grpc.AuthMetadataPlugin):
    """Gives gRPC's own calls the token. All others bring theirs."""

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

    `GARBAGE`: it answered, and the answer cannot be used. `CERTIFICATE`: its certificate is not one to believe
    (expired, another name, an unknown issuer), so nothing was sent.
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
    """A call to a server gave no usable answer. `kind` says in which way, the text has the server's own words.

    `retry_after_s`: the server says that another try is worth it after so many seconds; None where it does not say.
    """

    def __init__(self, kind: RemoteErrorKind, text: str, retry_after_s: float | None = None) -> None:
        self.kind = kind
        self.retry_after_s = retry_after_s
        super().__init__(text)


KINDS: Mapping[grpc.StatusCode, RemoteErrorKind] = MappingProxyType(
    {
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
)
"""Maps gRPC statuses to error kinds; others are INTERNAL."""

# gRPC has no status for this: the words are OpenSSL's, and those of gRPC's own check of the name.
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed", "is not in peer certificate")
_NO_CONNECTION = ("failed to connect", "connections to all backends failing")

LOOPBACK_ONLY = ClientSecurity()
"""No protection, only for servers on this machine."""


class PendingInfer:
    """An inference under way. Safe to use from any thread."""

    def __init__(self, future: Any, sent_bytes: int) -> None:
        self._future = future
        self.sent_bytes = sent_bytes
        """Size of the serialized request."""

    def result(self, timeout_s: float | None = None) -> InferResponse:
        """The answer, waited for at most `timeout_s`.

        Raises `RemoteError`, or `TimeoutError` where the wait ended first; the call goes on then.
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
        """Size of the serialized answer; 0 while there is none and where the call failed."""
        if not self._future.done() or self._future.code() is not grpc.StatusCode.OK:
            return 0
        return len(self._future.result() or b"")

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return bool(self._future.done())

    def cancel(self) -> None:
        """Give the call up; the server is told. Harmless once it has ended."""
        self._future.cancel()

    def add_done_callback(self, callback: Callable[[PendingInfer], None]) -> None:
        """Call `callback` when the call has ended, in gRPC's thread (or here, if it has): it must not block."""
        self._future.add_done_callback(lambda _: callback(self))


@dataclass(frozen=True)
class StreamAnswer:
    """What became of one request of a stream; `id` is the request's."""

    id: str
    outcome: InferResponse | RemoteError

    def result(self) -> InferResponse:
        """The answer. Raises the `RemoteError` that it is instead."""
        if isinstance(self.outcome, RemoteError):
            raise self.outcome
        return self.outcome

    @classmethod
    def read(cls, data: bytes) -> StreamAnswer:
        """What one message says. Raises `InvalidRequest`."""
        found = converters.parse_stream_response(data)
        if isinstance(found, InferResponse):
            return cls(found.id, found)
        code = grpc.StatusCode.__members__.get(found.status)
        kind = RemoteErrorKind.INTERNAL if code is None else KINDS.get(code, RemoteErrorKind.INTERNAL)
        return cls(found.id, RemoteError(kind, f"{found.status or 'no status'}: {found.text}"))


class OipClient:
    """Calls one server. Nothing is sent, and no connection made, before the first call.

    `endpoint` is `HOST:PORT`, `unix:PATH`, or `dns:///NAME:PORT` for all servers of that name; `options` are further
    gRPC channel options, `interface` the network interface to use, if not any. Changed certificate, key and token files
    take over with the next call. Every method may be called from any thread, takes the seconds it may last, and raises
    `RemoteError`. The constructor raises `ConfigError`.
    """

    drops_unsent: ClassVar[bool] = False
    """Whether a call that is given up drops what has not left; gRPC and the kernel still send what they hold."""

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
        self._relay: InterfaceRelay | None = None
        if interface:
            self._relay = InterfaceRelay(address, interface)
            self._target, options = self._relay.target, (*options, *self._relay.options)
        self._pem = watch_pem(security.tls) if security.tls else None
        self._token = watch_token(security.token_file)
        # gRPC's own calls carry a token over TLS alone, and a server that wants one would take us for a stranger.
        checks_health = self._token is None or self._pem is not None
        self._health_token = self._token if address.name_server is not None else None
        self._options = (*channel_options(address, max_message_bytes, checks_health=checks_health), *options)
        self._lock = threading.Lock()
        self._link: ChannelSource | None = None
        self._closed = False

    def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Ask for one inference and wait. Raises `InvalidRequest` for tensors the protocol cannot carry."""
        data = self._call("ModelInfer", converters.serialize_infer_request(request), timeout_s)
        return parsed(converters.parse_infer_response, data)

    def infer_async(self, request: InferRequest | bytes, timeout_s: float, traceparent: str = "") -> PendingInfer:
        """Ask for one inference without waiting. Raises as `infer` does where the call cannot even begin.

        The request may be given as `converters.serialize_infer_request` makes it: once, to be sent twice.
        `traceparent` is the call's place in a trace (a `telemetry.trace.Place` as text); empty where it has none.
        """
        data = request if isinstance(request, bytes) else converters.serialize_infer_request(request)
        return PendingInfer(self._start("ModelInfer", data, timeout_s, traceparent), len(data))

    def infer_stream(self, requests: Iterable[InferRequest], timeout_s: float) -> Generator[StreamAnswer, None, None]:
        """Ask for many inferences over one call (`ModelStreamInfer`), which lasts `timeout_s` at the most.

        Requests are taken as the server reads them, in a thread of gRPC's; answers come in the server's order, and so
        in that of the requests from a server of ours. One that fails is an answer, and the stream goes on. Raises
        `RemoteError` where the stream itself ends early, and what `requests` or writing one of them raises. Whoever
        leaves before the end closes the iterator, which gives the call up.
        """
        failed: list[Exception] = []
        call: Any = None

        def messages() -> Iterator[bytes]:
            try:
                yield from map(converters.serialize_infer_request, requests)
            except Exception as error:  # noqa: BLE001 (gRPC would log it, and end the call without its words)
                failed.append(error)
                call.cancel()

        try:
            call = self._method(STREAM)(messages(), **self._arguments(timeout_s))
            for data in call:
                yield parsed(StreamAnswer.read, data)
        except grpc.RpcError as error:
            raise (failed[0] if failed else _remote_error(error)) from None
        except ValueError:
            raise closed() from None
        finally:
            if call is not None:
                call.cancel()

    def warm_up(self, timeout_s: float, on_end: Callable[[bool], None]) -> None:
        """Make the connection now, with an empty call; `on_end` is told, in gRPC's thread, whether it was answered."""
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
        """Who serves there, and what it announces."""
        return parsed(converters.parse_server_metadata, self._call("ServerMetadata", b"", timeout_s))

    def metadata(self, model: str, timeout_s: float, version: str = "") -> ModelMetadata:
        """What a model takes and gives."""
        data = self._call("ModelMetadata", converters.serialize_model_name(model, version), timeout_s)
        return parsed(converters.parse_model_metadata, data)

    def config_parameters(self, model: str, timeout_s: float) -> Mapping[str, str]:
        """What the server says of a model in the `parameters` of its configuration, an extension of the protocol."""
        from upwell.shared.oip.codec import introspection  # few ask, and it brings in protobuf's JSON

        data = self._call("ModelConfig", introspection.serialize_config_request(model), timeout_s)
        return parsed(introspection.parse_config_parameters, data)

    def close(self) -> None:
        """Close the connection; calls under way end with `RemoteError` CANCELLED. Calling it twice is harmless."""
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
                # A former channel is not closed but let go: calls under way on it end in peace.
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
    """What the server sent, read by `parse`. Raises `RemoteError` (GARBAGE) where that raises `InvalidRequest`."""
    if data is None:  # gRPC's answer where the status is OK and no whole message came
        raise RemoteError(RemoteErrorKind.GARBAGE, "the server's answer has no message")
    try:
        return parse(data)
    except InvalidRequest as error:
        raise RemoteError(RemoteErrorKind.GARBAGE, f"the server's answer cannot be used: {error}") from None


def _remote_error(error: grpc.RpcError) -> RemoteError:
    code, details = error.code(), error.details() or "no details"
    kind = KINDS.get(code, RemoteErrorKind.INTERNAL)
    # Only where there was no connection: what a server says in its own words is another matter.
    if kind is RemoteErrorKind.UNAVAILABLE and details.startswith(_NO_CONNECTION):
        kind = RemoteErrorKind.CERTIFICATE if any(words in details for words in _UNTRUSTED) else kind
    return RemoteError(kind, f"{code.name}: {details}", told_by_trailers(error.trailing_metadata()))


def closed() -> RemoteError:
    """How every call ends that a closed client is asked for."""
    return RemoteError(RemoteErrorKind.CANCELLED, "the client is closed")
