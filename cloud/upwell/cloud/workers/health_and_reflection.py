"""`grpc.health.v1` and reflection beside the inference service, with a limit on their open streams."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2
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

_TELLING_S = 1.0
"""Longest time that a drain waits for the clients that watch."""

_Response = health_pb2.HealthCheckResponse
_State: TypeAlias = Any  # of the enumeration ServingStatus, which has no type
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(eq=False)
class _Watch:
    """A watch of `service` (None: of nothing), and the last state that its client has been `sent`."""

    service: str | None
    sent: _State | None = None


class Health:
    """Health of the service (as "" and under its name) and of each model under its name.

    A message to a watcher waits until the client's flow control lets it go, perhaps for ever. So each watch keeps a
    thread of the server, and none sends under the lock, which a thread that handles gRPC's events takes when a watch
    ends (grpc_health's servicer does send under its lock: one client that reads nothing, or a send at the wrong
    moment, then stops the whole server).
    """

    def __init__(self, models: dict[str, bool]) -> None:
        self._states: dict[str, _State] = {"": _Response.SERVING, SERVICE: _Response.SERVING}
        self._watches: set[_Watch] = set()
        self._is_ending = False
        self._lock = threading.Lock()
        self._changed, self._sent = threading.Condition(self._lock), threading.Condition(self._lock)
        for name, ready in models.items():
            self.show(name, ready)

    def show(self, name: str, ready: bool) -> None:
        """Set whether the model `name` is ready, also for watchers. Thread-safe."""
        with self._lock:
            if not self._is_ending:
                self._states[name] = _Response.SERVING if ready else _Response.NOT_SERVING
                self._changed.notify_all()

    def enter_graceful_shutdown(self) -> None:
        """Nothing is ready from now on. Waits a moment until the watchers have been told."""
        with self._lock:
            self._is_ending = True
            self._states = dict.fromkeys(self._states, _Response.NOT_SERVING)
            self._changed.notify_all()
            self._sent.wait_for(lambda: all(self._knows(watch) for watch in self._watches), _TELLING_S)

    def add_to(self, server: grpc.Server) -> None:
        """Register the servicer with `server`."""
        request, write = health_pb2.HealthCheckRequest, _Response.SerializeToString
        check: _Handler = grpc.unary_unary_rpc_method_handler(_reading(request, self.check), response_serializer=write)
        watch: _Handler = grpc.unary_stream_rpc_method_handler(_reading(request, self.watch), response_serializer=write)
        _add(server, _HEALTH, {"Check": check, "Watch": watch})

    def check(self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext) -> Any:
        """Report the current state. A model that the caller may not use is unknown to it; without a token every model
        is."""
        state = self._states.get(request.service) if _may_ask(request.service) else None
        if state is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "")
        return _Response(status=state)

    def watch(self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        """Report the state now and on every change; an unknown name is reported as such. A change that was undone
        while the client did not read is not reported."""
        watch = _Watch(request.service if _may_ask(request.service) else None)
        with self._lock:
            has_room = len(self._watches) < MAX_WATCHES
            if has_room:
                self._watches.add(watch)
        if not has_room:
            # With any other status a client that watches its servers would take this one for unhealthy; with
            # UNIMPLEMENTED it goes on without watching.
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"at most {MAX_WATCHES} health watches at a time")
        if not context.add_callback(lambda: self._end(watch)):
            self._end(watch)
        while True:
            with self._lock:
                self._changed.wait_for(lambda: watch not in self._watches or not self._knows(watch))
                if watch not in self._watches:
                    return
                state = self._state(watch)
            yield _Response(status=state)
            with self._lock:
                watch.sent = state
                self._sent.notify_all()

    def _state(self, watch: _Watch) -> _State:
        known = None if watch.service is None else self._states.get(watch.service)
        return _Response.SERVICE_UNKNOWN if known is None else known

    def _knows(self, watch: _Watch) -> bool:
        return bool(watch.sent == self._state(watch))

    def _end(self, watch: _Watch) -> None:
        with self._lock:
            self._watches.discard(watch)
            self._changed.notify_all()
            self._sent.notify_all()


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
    def read(data: bytes, context: grpc.ServicerContext) -> Any:
        return method(_read(kind, data, context), context)

    return read


def _read(kind: type[M], data: bytes, context: grpc.ServicerContext) -> M:
    try:
        return parse(kind, data)
    except InvalidRequest as error:
        abort(context, failure(error))


def _add(server: grpc.Server, service: str, methods: dict[str, _Handler]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
