"""`grpc.health.v1` and reflection beside the inference service, with a limit on their open streams."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
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

_states = health_pb2.HealthCheckResponse
_State: TypeAlias = Any  # of the enumeration ServingStatus, which has no type
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Health:
    """Health of the service (as "" and under its name) and of each model under its name.

    A message to a watcher waits until the client's flow control lets it go, perhaps for ever. So none is sent under the
    lock, which a thread that handles gRPC's events takes when a watch ends (grpc_health's servicer does send under its
    lock: one client that reads nothing, or a send at the wrong moment, then stops the whole server).
    """

    def __init__(self, models: dict[str, bool]) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {"": _states.SERVING, SERVICE: _states.SERVING}
        self._watchers: set[_Watcher] = set()
        self._is_ending = False
        for name, ready in models.items():
            self.show(name, ready)

    def show(self, name: str, ready: bool) -> None:
        """Set whether the model `name` is ready, also for watchers. Thread-safe."""
        self._set(name, _states.SERVING if ready else _states.NOT_SERVING)

    def enter_graceful_shutdown(self) -> None:
        """Nothing is ready from now on. Waits a moment until the watchers have been told."""
        with self._lock:
            names = list(self._states)
        telling = [thread for name in names for thread in self._set(name, _states.NOT_SERVING)]
        with self._lock:
            self._is_ending = True
        end_s = time.monotonic() + _TELLING_S
        for thread in telling:
            thread.join(max(0.0, end_s - time.monotonic()))

    def add_to(self, server: grpc.Server) -> None:
        """Register the servicer with `server`."""
        request, write = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse.SerializeToString
        check: _Handler = grpc.unary_unary_rpc_method_handler(_reading(request, self.check), response_serializer=write)
        watching = _reading(request, self.watch)
        # As in gRPC's own health servicer: the call goes on after the handler has returned.
        watching.__dict__["experimental_non_blocking"] = True
        watch: _Handler = grpc.unary_stream_rpc_method_handler(watching, response_serializer=write)
        _add(server, _HEALTH, {"Check": check, "Watch": watch})

    def check(self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext) -> Any:
        """Report the current state. A model that the caller may not use is unknown to it; without a token every model
        is."""
        state = self._states.get(request.service) if _may_ask(request.service) else None
        if state is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "")
        return health_pb2.HealthCheckResponse(status=state)

    def watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.ServicerContext,
        send_response_callback: Callable[[health_pb2.HealthCheckResponse], object],
    ) -> None:
        """Report the state now and on every change; an unknown name is reported as such."""
        watcher = _Watcher(request.service if _may_ask(request.service) else None, send_response_callback)
        with self._lock:
            has_room = len(self._watchers) < MAX_WATCHES
            if has_room:
                self._watchers.add(watcher)
                known = None if watcher.service is None else self._states.get(watcher.service)
                watcher.put(_states.SERVICE_UNKNOWN if known is None else known)
        if not has_room:
            # With any other status a client that watches its servers would take this one for unhealthy; with
            # UNIMPLEMENTED it goes on without watching.
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"at most {MAX_WATCHES} health watches at a time")
        if not context.add_callback(lambda: self._forget(watcher)):
            self._forget(watcher)
        watcher.tell()

    def _set(self, name: str, state: _State) -> list[threading.Thread]:
        """Set a state, and begin to tell the watchers; returns the threads that do."""
        with self._lock:
            if self._is_ending:
                return []
            self._states[name] = state
            idle = [watcher for watcher in self._watchers if watcher.service == name and watcher.put(state)]
        telling = [threading.Thread(target=watcher.tell, name="health", daemon=True) for watcher in idle]
        for thread in telling:
            thread.start()
        return telling

    def _forget(self, watcher: _Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)


class _Watcher:
    """A watcher of `service` (None: of nothing). One thread at a time sends; what it has not sent yet is replaced."""

    def __init__(self, service: str | None, send: Callable[[health_pb2.HealthCheckResponse], object]) -> None:
        self.service = service
        self._send = send
        self._lock = threading.Lock()
        self._next: _State | None = None
        self._is_told = False

    def put(self, state: _State) -> bool:
        """What to send next; returns whether the caller must have `tell` called."""
        with self._lock:
            self._next = state
            had_teller, self._is_told = self._is_told, True
            return not had_teller

    def tell(self) -> None:
        """Send what has been put, until there is no more."""
        while True:
            with self._lock:
                state, self._next = self._next, None
                if state is None:
                    self._is_told = False
                    return
            self._send(health_pb2.HealthCheckResponse(status=state))


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
