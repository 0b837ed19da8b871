"""Calls whose message does not come: gRPC keeps a place for each, for as long as the caller likes.

A call begins with its headers. For a method that takes one message, gRPC then waits for that, and nobody can break it
off. So only so many calls may be in that state. A further one is served as one that takes a stream of messages, which
costs more but runs before the first has come: the wait for it can be watched.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import grpc

from upwell.shared.oip.auth.callers import client_key
from upwell.shared.platform.call_threads import CallThreads, started, yield_permit

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class PendingCalls:
    """Waits for the first message of calls, which run in `threads`.

    Half of the places may be with calls that gRPC waits for. Where more than a quarter of them keep us waiting beside
    those, some are broken off (CANCELLED): at least a quarter is left for calls that have all they need.
    """

    def __init__(self, threads: CallThreads, count: int) -> None:
        self._threads = threads
        self._most_trusted = count // 2
        most = max(1, count // 4)
        self._waiting: SlowClientGuard[grpc.ServicerContext] = SlowClientGuard(
            most, lambda context: client_key(context.peer()), lambda context: context.cancel()
        )

    @property
    def trusts(self) -> bool:
        """Whether gRPC may wait for the message of one more call."""
        return self._threads.beginning <= self._most_trusted

    def first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """The message of a call. Aborts the call that ends without one, raises gRPC's error where it is broken off."""
        key = id(requests)
        self._waiting.add(key, context)
        try:
            return next(requests)
        except StopIteration:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a message")
        finally:
            self._waiting.remove(key)


class Registrar:
    """Takes the handlers of services for a server that is not yet started; `pending_calls` waits for their messages.

    It has those methods of `grpc.Server` that generated code calls to add a service.
    """

    def __init__(self, server: grpc.Server, pending_calls: PendingCalls) -> None:
        self._server = server
        self._pending_calls = pending_calls

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See `grpc.Server`."""
        self._server.add_generic_rpc_handlers(tuple(_Waiting(one, self._pending_calls) for one in generic_rpc_handlers))

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, _Handler]) -> None:
        """See `grpc.Server`. They stay generic ones, which are looked up anew for each call."""


class _Waiting(grpc.GenericRpcHandler):
    """The methods of another handler, each as it waits for its message itself and as gRPC does."""

    def __init__(self, inner: grpc.GenericRpcHandler, pending_calls: PendingCalls) -> None:
        self._inner = inner
        self._pending_calls = pending_calls
        self._known: dict[str, tuple[_Handler, _Handler, _Handler]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """The method that is called; None where it is not one of these."""
        method = self._inner.service(handler_call_details)
        if method is None:
            return None
        known = self._known.get(handler_call_details.method)
        if known is None or known[0] is not method:
            made = (method, _awaited(method), _waiting(self._pending_calls, method))
            known = self._known[handler_call_details.method] = made
        return known[1] if self._pending_calls.trusts else known[2]


def _awaited(handler: _Handler) -> _Handler:
    """A method that takes one message, and tells its thread when it has come, and that it waits if it is a stream."""
    if handler.request_streaming:
        return handler
    streams = handler.response_streaming
    behaviour: Any = handler.unary_stream if streams else handler.unary_unary

    @functools.wraps(behaviour)
    def begin(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
        started()
        if streams:
            yield_permit()
        return behaviour(request, context, *more)

    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    made: _Handler = make(begin, handler.request_deserializer, handler.response_serializer)
    return made


def _waiting(pending_calls: PendingCalls, handler: _Handler) -> _Handler:
    """A method that takes one message, as one that takes a stream of them: it runs before the message has come."""
    if handler.request_streaming:
        return handler
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    @functools.wraps(behaviour)
    def wait(requests: Iterator[Any], context: grpc.ServicerContext, *more: Any) -> Any:
        started()
        yield_permit()
        return behaviour(pending_calls.first(requests, context), context, *more)

    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    made: _Handler = make(wait, handler.request_deserializer, handler.response_serializer)
    return made


PATIENCE_S = 0.25
"""Minimum time before a call is cut off: the rest is usually on its way in the same packet."""

_LOOK_EVERY_S = 0.05

T = TypeVar("T")


class SlowClientGuard(Generic[T]):
    """Those that are waited for. While more than `most` are, the ones waited for the longest are broken off, of the
    address that has the most of them first; so a slow upload is given up only where that many are under way.

    `address_of` names a client, `break_off` ends the wait from another thread. Any thread may call the methods, which
    are on the way of every request: single operations on a dictionary need no lock.
    """

    def __init__(self, most: int, address_of: Callable[[T], str], break_off: Callable[[T], object]) -> None:
        self._most = most
        self._address_of = address_of
        self._break_off = break_off
        self._waiting: dict[int, tuple[float, T]] = {}  # in the order of their beginning
        self._thinning = threading.Lock()

    def add(self, key: int, one: T) -> None:
        """Begin to wait for `one`, known by `key`."""
        self._waiting[key] = (time.monotonic(), one)
        if len(self._waiting) > self._most and self._thinning.acquire(blocking=False):
            threading.Thread(target=self._thin_out, name="oip-waiting", daemon=True).start()

    def remove(self, key: int) -> None:
        """Wait no more, whether it was broken off or not."""
        self._waiting.pop(key, None)

    def _thin_out(self) -> None:
        """Break off until few enough are left. The lock is held on entry."""
        try:
            while len(self._waiting) > self._most:
                self._break_off_late(len(self._waiting) - self._most)
                time.sleep(_LOOK_EVERY_S)
        finally:
            self._thinning.release()

    def _break_off_late(self, count: int) -> None:
        late_s = time.monotonic() - PATIENCE_S
        late = [(key, one) for key, (since_s, one) in list(self._waiting.items()) if since_s <= late_s]
        addresses = [self._address_of(one) for _, one in late]
        for _ in range(min(count, len(late))):
            ((worst, _),) = Counter(addresses).most_common(1)
            at = addresses.index(worst)
            addresses.pop(at)
            key, one = late.pop(at)
            if self._waiting.pop(key, None) is not None:  # the rest may have come meanwhile
                self._break_off(one)
