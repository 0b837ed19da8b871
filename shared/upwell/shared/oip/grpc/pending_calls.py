"""Calls whose message does not come: gRPC keeps a place for each, for as long as the caller likes.

A call begins with its headers. For a method that takes one message, gRPC then waits for that, and nobody can break it
off. So only so many calls may be in that state. A further one is served as one that takes a stream of messages, which
costs more but runs before the first has come: the wait for it can be watched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import grpc

from upwell.shared.oip.auth.callers import client_key
from upwell.shared.oip.grpc.slow_client_guard import SlowClientGuard
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
