"""One replica of a Ray Serve application: the models of a cloud.yaml behind the methods of the protocol.

Nothing here imports Ray. Ray's gRPC proxy looks methods up by their names in the protocol, passes each the serialized
request and a context, and expects an answer that it can serialize.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc

from upwell.cloud.config import CloudConfig
from upwell.cloud.observe.telemetry import Telemetry
from upwell.cloud.service.cloud_service import CloudService
from upwell.cloud.service.model_loader import attempt, calls_at_once, check_any, find_models
from upwell.shared.errors import Refused, Unavailable
from upwell.shared.oip.auth.request_quotas import limited
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import Call, Flag, InferRequest
from upwell.shared.oip.error_statuses import Status
from upwell.shared.oip.grpc.server.model_stream import METHOD as STREAM_METHOD
from upwell.shared.oip.grpc.server.servicer import (
    METHODS,
    SERVICE,
    failure,
    infer,
    methods_of,
    read_request,
    serialized,
)
from upwell.shared.oip.retry_after import trailers

QUICK_CALLS = 16
"""Calls of a replica beside inference: readiness, metadata, and requests refused at once."""

AHEAD = 16
"""Requests of one stream that may be in progress at a time."""

T = TypeVar("T")

_log = logging.getLogger("upwell.cloud")


class Context(Protocol):
    """The part of Ray's `RayServegRPCContext` that is used here."""

    def peer(self) -> str:
        """The caller's address."""
        ...

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """The metadata that the caller sent."""
        ...

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status of the call."""
        ...

    def set_details(self, details: str) -> None:
        """Set the text of the status."""
        ...

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str | bytes]]) -> None:
        """Set the trailing metadata."""
        ...


@dataclass(frozen=True)
class Serialized:
    """A message that is already serialized, in the form that Ray serializes."""

    data: bytes = b""

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        """The message."""
        return self.data


def add_methods(servicer: Any, server: Any) -> None:
    """Register the protocol's methods with Ray's gRPC proxy, in the form of its `grpc_servicer_functions`.

    There are no (de)serializers: messages pass through the proxy as bytes and are parsed once, in the replica.
    """
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(getattr(servicer, name)) for name in METHODS}
    handlers[STREAM_METHOD] = grpc.stream_stream_rpc_method_handler(getattr(servicer, STREAM_METHOD))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class Replica:
    """All models of a cloud.yaml in one Ray process, with the methods of the protocol.

    `written` is the configuration as plain values. The constructor loads and warms up every model. Raises
    `ConfigError`, and `ModelFailed` if no model can be served.
    """

    def __init__(self, written: Mapping[str, Any]) -> None:
        config = CloudConfig.model_validate(written)
        serve = config.serve
        self._telemetry = Telemetry(serve, lambda: self._service.versions_by_model)
        results = [attempt(folder, config, self._telemetry.on_run).result for folder in find_models(config)]
        check_any(results)
        self._service = CloudService(results)
        self._dataplane = self._telemetry.before(limited(self._service, serve.limits, by_token=False))
        self._most_bytes = serve.max_message
        self._methods = methods_of(self._dataplane, self._most_bytes)
        self._pool = ThreadPoolExecutor(calls_at_once(results, config) + QUICK_CALLS, "oip")

    async def ServerLive(self, data: bytes, grpc_context: Context) -> Serialized:  # noqa: N802 (the protocol's name)
        """Whether there is a replica."""
        return await self._answer("ServerLive", data, grpc_context)

    async def ServerReady(self, data: bytes, grpc_context: Context) -> Serialized:  # noqa: N802 (the protocol's name)
        """Whether this replica accepts requests."""
        return await self._answer("ServerReady", data, grpc_context)

    async def ModelReady(self, data: bytes, grpc_context: Context) -> Serialized:  # noqa: N802 (the protocol's name)
        """Whether a model accepts requests here."""
        return await self._answer("ModelReady", data, grpc_context)

    async def ServerMetadata(self, data: bytes, grpc_context: Context) -> Serialized:  # noqa: N802 (as above)
        """Name, version and extensions of the service."""
        return await self._answer("ServerMetadata", data, grpc_context)

    async def ModelMetadata(self, data: bytes, grpc_context: Context) -> Serialized:  # noqa: N802 (as above)
        """Inputs and outputs of a model."""
        return await self._answer("ModelMetadata", data, grpc_context)

    async def ModelInfer(self, data: bytes, grpc_context: Context) -> Serialized:  # noqa: N802 (the protocol's name)
        """Answer one request."""
        return await self._answer("ModelInfer", data, grpc_context)

    async def ModelStreamInfer(  # noqa: N802 (the protocol's name)
        self, request_stream: AsyncIterator[bytes], grpc_context: Context
    ) -> AsyncIterator[Serialized]:
        """Answer the requests of a stream in order; at most `AHEAD` of them are in progress at a time."""
        call = call_of(grpc_context)
        under_way: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue(AHEAD)

        async def read() -> None:
            try:
                async for data in request_stream:
                    await under_way.put(asyncio.ensure_future(self._in_thread(partial(self._streamed, data, call))))
            except Exception as error:  # noqa: BLE001 (whatever Ray raises where the proxy has died)
                _log.warning("a stream ends because its requests no longer arrive: %s", error)
            await under_way.put(None)

        reader = asyncio.ensure_future(read())
        try:
            while (answer := await under_way.get()) is not None:
                yield Serialized(await answer)
        finally:
            call.cancelled.set()
            reader.cancel()

    def check_health(self) -> None:
        """Called by Ray every few seconds; Ray replaces a replica for which this raises."""
        if not self._service.ready():
            raise Unavailable("the replica takes no more requests")

    def __del__(self) -> None:
        """Called by Ray when the replica's requests have ended, or their time is up."""
        if hasattr(self, "_pool"):
            self._service.drain(0.0)
            self._service.close()
            self._telemetry.close()
            self._pool.shutdown(wait=False)

    async def _answer(self, method: str, data: bytes, context: Context) -> Serialized:
        """Run a method in a thread; returns its answer, or the status of its error. Ray cancels this if the caller
        leaves."""
        call = call_of(context)
        try:
            self._check_size(data)
            answer = await self._in_thread(partial(self._methods[method], data, call))
        except asyncio.CancelledError:
            call.cancelled.set()
            raise
        except Exception as error:  # noqa: BLE001 (the boundary: callers must not see the inside of a bug)
            return _refused(failure(error), context)
        return Serialized(answer)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # The caller's identity is in the context, and a context can be entered by one thread at a time.
        return await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, work)

    def _streamed(self, data: bytes, call: Call) -> bytes:
        """The reply to one request of a stream, which may be an error."""
        request: InferRequest | None = None
        try:
            self._check_size(data)
            with self._dataplane.reading(call, len(data)):
                request = read_request(data)
            response = infer(self._dataplane, request, call)
            return serialized(converters.serialize_stream_response, response, self._most_bytes)
        except Exception as error:  # noqa: BLE001 (as above)
            status = failure(error)
            return converters.serialize_stream_error(status.text, status.code.name, request)

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._most_bytes:
            raise Refused(f"the request has {len(data)} bytes; {self._most_bytes} are allowed")


def call_of(context: Context) -> Call:
    """The circumstances of a call. Ray does not pass on the caller's deadline, but cancels the call when it ends."""
    sent = dict(context.invocation_metadata())
    traceparent = sent.get("traceparent", "")
    return Call(math.inf, Flag(), context.peer(), traceparent if isinstance(traceparent, str) else "")


def _refused(status: Status, context: Context) -> Serialized:
    """End a call with this status, without raising: Ray would log a traceback and drop the trailers."""
    context.set_code(status.code)
    context.set_details(status.text)
    context.set_trailing_metadata(list(trailers(status)))
    return Serialized()
