"""Limits calls whose message does not come, or whose answer is not read: gRPC keeps both as long as the caller likes.

A call begins with its headers. For a unary method gRPC then waits for the message, and this wait cannot be ended from
outside. So only a limited number of calls may be in that state. Further ones are handled as streams of messages, which
costs more but starts before the first message has come, so that the wait can be limited.

An answer stays in gRPC's memory until its client reads it, though the call has left its thread and counts no more.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import grpc

from upwell.shared.oip.auth.caller import client_key
from upwell.shared.platform.call_threads import CallThreads, started, yield_permit

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_UNREAD_ANSWERS, _LEAST_UNREAD_BYTES = 8, 512 << 20


class PendingCalls:
    """Waits for the first message of calls, which run in `threads`, and for their clients to read the answers.

    gRPC itself may wait for half of the places. If more than a quarter of them wait here, some are cut off (CANCELLED):
    at least a quarter is left for calls that have their message. So are some of those whose answers nobody reads, if
    these are too large together.
    """

    def __init__(self, threads: CallThreads, count: int, unread: UnreadAnswers) -> None:
        self._threads = threads
        self._most_trusted = count // 2
        self._waiting = _guard(max(1, count // 4))
        self._unread = unread

    @property
    def trusts(self) -> bool:
        """Whether gRPC may wait for the message of another call."""
        return self._threads.beginning <= self._most_trusted

    def first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """The message of a call. Aborts a call that ends without one; raises gRPC's error if the call is cut off."""
        key = id(requests)
        self._waiting.add(key, context)
        try:
            return next(requests)
        except StopIteration:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a message")
        finally:
            self._waiting.remove(key)

    def sending(self, answer: Any, context: grpc.ServicerContext) -> Any:
        """The answer of a call, which counts as unread until the call has ended."""
        if type(answer) is bytes:
            key = self._unread.add(context, answer)
            if key is not None and not context.add_callback(lambda: self._unread.remove(key)):
                self._unread.remove(key)
        return answer


def most_unread_bytes(max_message_bytes: int) -> int:
    """The size of answers that may wait for their clients to read them: some of the largest, and as much as bodies
    over HTTP, since a small maximum must not cut off slow links.
    """
    return max(_UNREAD_ANSWERS * max_message_bytes, _LEAST_UNREAD_BYTES)


class UnreadAnswers:
    """The answers of a server that gRPC keeps because their clients do not read them: `most_bytes` together.

    Beyond it calls are cut off (CANCELLED), of the address with the most. Streams stop reading before that.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting = _guard(most_bytes)

    @property
    def free_bytes(self) -> int:
        """The size of further answers that may wait; negative beyond the limit."""
        return self._most_bytes - self._waiting.total

    def wait_read(self, limit_s: float) -> None:
        """Wait until the clients have read all, or the time is up."""
        until_s = time.monotonic() + limit_s
        while self._waiting.total and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)

    def add(self, context: grpc.ServicerContext, answer: bytes, number: int = 0) -> tuple[int, int] | None:
        """Count an answer of a call, one of several by its `number`; returns its key, None if it is small."""
        if len(answer) < _LARGE_BYTES:
            return None
        key = id(context), number
        self._waiting.add(key, context, len(answer))
        return key

    def remove(self, key: tuple[int, int]) -> None:
        """The answer has been read, or the call has ended."""
        self._waiting.remove(key)


def _guard(most: int) -> SlowClientGuard[grpc.ServicerContext]:
    return SlowClientGuard(most, lambda context: client_key(context.peer()), lambda context: context.cancel())


class Registrar:
    """Collects the handlers of services for a server that has not started; `pending_calls` waits for their messages.

    It has those methods of `grpc.Server` that generated code uses to add a service.
    """

    def __init__(self, server: grpc.Server, pending_calls: PendingCalls) -> None:
        self._server = server
        self._pending_calls = pending_calls

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See `grpc.Server`."""
        self._server.add_generic_rpc_handlers(tuple(_Waiting(one, self._pending_calls) for one in generic_rpc_handlers))

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, _Handler]) -> None:
        """See `grpc.Server`. They become generic handlers, which are looked up for each call."""


class _Waiting(grpc.GenericRpcHandler):
    """The methods of another handler, each in two forms: one waits for its message itself, the other lets gRPC wait."""

    def __init__(self, inner: grpc.GenericRpcHandler, pending_calls: PendingCalls) -> None:
        self._inner = inner
        self._pending_calls = pending_calls
        self._known: dict[str, tuple[_Handler, _Handler, _Handler]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """The method that is called; None if this handler does not have it."""
        method = self._inner.service(handler_call_details)
        if method is None:
            return None
        known = self._known.get(handler_call_details.method)
        if known is None or known[0] is not method:
            made = (method, _awaited(self._pending_calls, method), _waiting(self._pending_calls, method))
            known = self._known[handler_call_details.method] = made
        return known[1] if self._pending_calls.trusts else known[2]


def _awaited(pending_calls: PendingCalls, handler: _Handler) -> _Handler:
    """A unary method that reports when its message has come, and yields its permit if it is a stream."""
    if handler.request_streaming:
        return handler
    streams = handler.response_streaming
    behaviour: Any = handler.unary_stream if streams else handler.unary_unary

    @functools.wraps(behaviour)
    def begin(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
        started()
        if streams:
            yield_permit()
        return pending_calls.sending(behaviour(request, context, *more), context)

    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    made: _Handler = make(begin, handler.request_deserializer, handler.response_serializer)
    return made


def _waiting(pending_calls: PendingCalls, handler: _Handler) -> _Handler:
    """A unary method in the form of a stream of messages: it runs before the message has come."""
    if handler.request_streaming:
        return handler
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    @functools.wraps(behaviour)
    def wait(requests: Iterator[Any], context: grpc.ServicerContext, *more: Any) -> Any:
        started()
        yield_permit()
        return pending_calls.sending(behaviour(pending_calls.first(requests, context), context, *more), context)

    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    made: _Handler = make(wait, handler.request_deserializer, handler.response_serializer)
    return made


PATIENCE_S = 0.25
"""Minimum time before a call is cut off: the message usually comes in the same packet as the headers."""

_LARGE_BYTES = 4096
"""Answers below this size are not counted: as many as would matter take more memory as calls."""

_LOOK_EVERY_S = 0.05

T = TypeVar("T")


class SlowClientGuard(Generic[T]):
    """Limits slow clients. While more than `most` is waited for, items of the address with the most are cut off,
    longest wait first; so a slow client is cut off only if so much is in progress.

    `address_of` names an item's client, `break_off` ends its wait from another thread. Thread-safe.
    """

    def __init__(self, most: int, address_of: Callable[[T], str], break_off: Callable[[T], object]) -> None:
        self._most = most
        self._address_of = address_of
        self._break_off = break_off
        self._waiting: dict[Hashable, tuple[float, T, int]] = {}  # in order of their start
        self._total = 0
        self._lock = threading.Lock()
        self._thinning = threading.Lock()

    @property
    def total(self) -> int:
        """The sum of the weights of all that is waited for."""
        return self._total

    def add(self, key: Hashable, one: T, weight: int = 1) -> None:
        """Start waiting for `one`, with the given key; `weight` counts towards `most`."""
        with self._lock:
            self._waiting[key] = (time.monotonic(), one, weight)
            self._total += weight
        if self._total > self._most and self._thinning.acquire(blocking=False):
            try:
                threading.Thread(target=self._thin_out, name="oip-waiting", daemon=True).start()
            except RuntimeError:  # the system allows no more threads now; the next call tries again
                self._thinning.release()

    def remove(self, key: Hashable) -> bool:
        """Stop waiting; False if it was cut off, or removed, before."""
        with self._lock:
            found = self._waiting.pop(key, None)
            self._total -= 0 if found is None else found[2]
        return found is not None

    def _thin_out(self) -> None:
        """Cut items off until little enough is left. The lock is held on entry."""
        try:
            while self._total > self._most:
                self._break_off_late(self._total - self._most)
                time.sleep(_LOOK_EVERY_S)
        finally:
            self._thinning.release()

    def _break_off_late(self, excess: int) -> None:
        late_s = time.monotonic() - PATIENCE_S
        with self._lock:
            late = [(key, one, weight) for key, (since_s, one, weight) in self._waiting.items() if since_s <= late_s]
        by_address: dict[str, deque[tuple[Hashable, T, int]]] = {}
        held: Counter[str] = Counter()
        for item in late:
            address = self._address_of(item[1])
            by_address.setdefault(address, deque()).append(item)
            held[address] += item[2]
        while excess > 0 and held:
            ((worst, _),) = held.most_common(1)
            key, one, weight = by_address[worst].popleft()
            excess -= weight
            held[worst] -= weight
            if not by_address[worst]:
                del held[worst]
            if self.remove(key):  # its wait may have ended meanwhile
                self._break_off(one)
