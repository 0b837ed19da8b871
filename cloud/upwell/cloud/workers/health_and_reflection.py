"""`grpc.health.v1` and reflection beside the inference service, with a limit on their open streams."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import HealthServicer
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.auth.caller import may_use
from upwell.shared.oip.codec.tensor_messages import M, parse
from upwell.shared.oip.grpc.server.reflection import service_pool
from upwell.shared.oip.grpc.server.servicer import SERVICE, abort, failure
from upwell.shared.platform.call_threads import yield_permit

MAX_WATCHES = 64
MAX_REFLECTIONS = 4
MAX_STREAMS = MAX_WATCHES + MAX_REFLECTIONS
"""Streams that may stay open as long as their clients like, in addition to the server's calls."""

_REFLECTION_LIMIT_S = 60.0
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Health(HealthServicer):
    """Health of the service (as "" and under its name) and of each model under its name."""

    def __init__(self, models: dict[str, bool]) -> None:
        super().__init__()
        self._known = {"", SERVICE}
        self._watches = threading.Semaphore(MAX_WATCHES)
        self.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        for name, ready in models.items():
            self.show(name, ready)

    def show(self, name: str, ready: bool) -> None:
        """Set whether the model `name` is ready, also for watchers. Thread-safe."""
        self._known.add(name)
        states = health_pb2.HealthCheckResponse
        self.set(name, states.SERVING if ready else states.NOT_SERVING)

    def add_to(self, server: grpc.Server) -> None:
        """Register the servicer with `server`."""
        request, write = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse.SerializeToString
        check: _Handler = grpc.unary_unary_rpc_method_handler(_reading(request, self.Check), response_serializer=write)
        watch: _Handler = grpc.unary_stream_rpc_method_handler(_reading(request, self.Watch), response_serializer=write)
        _add(server, _HEALTH, {"Check": check, "Watch": watch})

    def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802 (the protocol's name)
        """Report the current state. A model that the caller may not use is unknown to it; without a token every model
        is."""
        if not _may_ask(request.service):
            context.abort(grpc.StatusCode.NOT_FOUND, "")
        return super().Check(request, context)

    def Watch(  # noqa: N802 (the protocol's name)
        self, request: health_pb2.HealthCheckRequest, context: Any, send_response_callback: Any = None
    ) -> Any:
        """Report the state now and on every change. An unknown name is reported as such and not remembered."""
        if not self._watches.acquire(blocking=False):
            # With any other status a client that watches its servers would take this one for unhealthy; with
            # UNIMPLEMENTED it goes on without watching.
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"at most {MAX_WATCHES} health watches at a time")
        if not context.add_callback(self._watches.release):
            self._watches.release()
        if request.service not in self._known or not _may_ask(request.service):
            unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            send_response_callback(health_pb2.HealthCheckResponse(status=unknown))
            return None
        return super().Watch(request, context, send_response_callback)


def _may_ask(service: str) -> bool:
    return service in ("", SERVICE) or may_use(service)


class Reflection(ReflectionServicer):
    """Reflection, for tools such as grpcurl. A stream lasts 60 s at most, because it holds a thread."""

    def __init__(self) -> None:
        pool = service_pool(with_extensions=True)
        for module in (health_pb2, reflection_pb2):
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        super().__init__([SERVICE, _HEALTH, _REFLECTION], pool=pool)
        self._streams = threading.Semaphore(MAX_REFLECTIONS)

    def add_to(self, server: grpc.Server) -> None:
        """Register the servicer with `server`."""

        def info(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            yield_permit()
            read = (_read(reflection_pb2.ServerReflectionRequest, one, context) for one in requests)
            return self.ServerReflectionInfo(read, context)

        write = reflection_pb2.ServerReflectionResponse.SerializeToString
        handler: _Handler = grpc.stream_stream_rpc_method_handler(info, response_serializer=write)
        _add(server, _REFLECTION, {"ServerReflectionInfo": handler})

    def ServerReflectionInfo(  # noqa: N802 (the protocol's name)
        self, request_iterator: Iterable[reflection_pb2.ServerReflectionRequest], context: Any
    ) -> Iterator[reflection_pb2.ServerReflectionResponse]:
        """Answer the questions of one stream."""
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_REFLECTIONS} reflection streams at a time")
        limit = threading.Timer(_REFLECTION_LIMIT_S, context.cancel)
        limit.daemon = True
        limit.start()
        try:
            yield from super().ServerReflectionInfo(request_iterator, context)
        finally:
            limit.cancel()
            self._streams.release()


# The generated handlers leave parsing to gRPC, which treats an unreadable message as a fault of the server, logs a
# traceback each time, and in a stream never releases the call: the server can then not be stopped any more.
def _reading(kind: type[M], method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, which takes a message of this type, as a method that takes its bytes."""

    @functools.wraps(method)
    def read(data: bytes, context: grpc.ServicerContext, *more: Any) -> Any:
        return method(_read(kind, data, context), context, *more)

    return read


def _read(kind: type[M], data: bytes, context: grpc.ServicerContext) -> M:
    try:
        return parse(kind, data)
    except InvalidRequest as error:
        abort(context, failure(error))


def _add(server: grpc.Server, service: str, methods: dict[str, _Handler]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
