"""The private parts of gRPC's server that the fast path replaces or uses: waiting for events, and streams.

A version of gRPC is recognized by the source of the functions that are replaced, of those that are called, and of the
constructors that define the attributes in use; it is the same on every Python. A version with other source is left
alone.

Single calls: gRPC's server has one thread for events, which hands each call to another. For a small request that
switch, and the contention of both threads for the GIL, cost a third of the time. gRPC has no public option for it, so
its own module is changed here, for servers whose threads are `CallThreads` with a limit on active tasks: their calls
say when they wait, and then another thread waits for events.

Streams: gRPC's server blocks a thread for each message of a stream, and for the sending of each answer: four thread
switches per request. Here no thread belongs to a stream; the thread that handles gRPC's events calls the listener.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import grpc

from upwell.shared.platform.call_threads import CallFuture, CallThreads, started, yield_permit

# Neither module has types.
server: Any = importlib.import_module("grpc._server")
cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")

READ = (
    "_abort", "_begin_shutdown_once", "_get_initial_metadata_operation", "_get_send_message_op_flags_from_state",
    "_handle_unary_unary", "_is_rpc_state_active", "_possibly_finish_call", "_process_event_and_continue",
    "_reset_per_message_state", "_serve", "_unary_response_in_pool",
    "_Context.__init__", "_RPCState.__init__", "_ServerState.__init__",
)  # fmt: skip
"""Functions of `grpc._server` whose source is checked."""

NAMES = (
    "_CANCELLED", "_CLOSED", "_DEALLOCATED_SERVER_CHECK_PERIOD_S", "_EMPTY_FLAGS", "_OPEN", "_RECEIVE_MESSAGE_TOKEN",
    "_SEND_MESSAGE_TOKEN", "_common",
)  # fmt: skip
OF_CYTHON = ("CompletionType", "ReceiveMessageOperation", "SendMessageOperation")

KNOWN = frozenset({"fb85fbee892b66fc2814b2b2c8f0464dd9cc5a33fad8f0683edcfe4c612db4ba"})
"""Digests of the releases with which the suites of calls and streams have passed: 1.78.0, 1.80.0, 1.85.1."""

own_handle_unary_unary: Any = getattr(server, "_handle_unary_unary", None)
"""gRPC's own function."""
own_serve: Any = getattr(server, "_serve", None)
"""gRPC's own function."""

_own = {"_handle_unary_unary": own_handle_unary_unary, "_serve": own_serve}
_state = {"on": False}


def digest() -> str:
    """SHA-256 in hex over the source of every function in `READ`; "" if one is missing or has no source."""
    texts = []
    for name in READ:
        found: Any = _own.get(name, server)
        if found is server:
            for part in name.split("."):
                found = getattr(found, part, None)
        try:
            texts.append(inspect.getsource(found))
        except (OSError, TypeError):
            return ""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def is_known() -> bool:
    """Whether this version of gRPC is known."""
    there = all(hasattr(server, name) for name in NAMES) and all(hasattr(cygrpc, name) for name in OF_CYTHON)
    return there and digest() in KNOWN


def is_on() -> bool:
    """Whether the fast path is on in this process."""
    return _state["on"]


def replace(functions: dict[str, Any], *, on: bool) -> None:
    """Replace these functions of gRPC's server."""
    for name, function in functions.items():
        setattr(server, name, function)
    _state["on"] = on


SHORT_BYTES = 1 << 16
"""Maximum message size for inline handling. Larger messages take longer than a thread switch, and events should not
wait for them."""


def serve(state: Any) -> None:
    """Replaces `grpc._server._serve`, which runs in a thread of its own."""
    threads = state.thread_pool
    next_event = functools.partial(_next_event, state)
    if not isinstance(threads, CallThreads) or threads.at_work is None or not threads.poll(next_event):
        own_serve(state)


def _next_event(state: Any) -> Any:
    """Handle one event, as gRPC's event thread does. False if there will be no more."""
    event = state.completion_queue.poll(time.time() + server._DEALLOCATED_SERVER_CHECK_PERIOD_S)
    if state.server_deallocated:
        server._begin_shutdown_once(state)
    if event.completion_type == cygrpc.CompletionType.queue_timeout:
        return True
    return server._process_event_and_continue(state, event)


_NO_MESSAGE = b"the call ended without a message; this method takes exactly one"
_UNREADABLE = b"Exception deserializing request!"


def handle_unary_unary(rpc_event: Any, state: Any, method_handler: Any, default_thread_pool: Any) -> Any:
    """Replaces `grpc._server._handle_unary_unary`; runs in the event thread, with the lock of the call's state held."""
    if not isinstance(default_thread_pool, CallThreads):
        return own_handle_unary_unary(rpc_event, state, method_handler, default_thread_pool)
    task = default_thread_pool.expect()

    def received(event: Any) -> Any:
        message = event.batch_operations[0].message()
        if message is None:
            return _without_message(default_thread_pool, task, rpc_event, state)
        with state.condition:
            finished = server._possibly_finish_call(state, server._RECEIVE_MESSAGE_TOKEN)
        _begin(default_thread_pool, task, rpc_event, state, method_handler, message)
        return finished

    rpc_event.call.start_server_batch((cygrpc.ReceiveMessageOperation(server._EMPTY_FLAGS),), received)
    state.due.add(server._RECEIVE_MESSAGE_TOKEN)
    return task


def _begin(
    threads: CallThreads, task: CallFuture, rpc_event: Any, state: Any, method_handler: Any, message: bytes
) -> None:
    def argument() -> Any:
        request = server._common.deserialize(message, method_handler.request_deserializer)
        if request is None:
            with state.condition:
                server._abort(state, rpc_event.call, cygrpc.StatusCode.internal, _UNREADABLE)
        return request

    threads.begin(
        task, state.context.run, server._unary_response_in_pool, rpc_event, state, method_handler.unary_unary,
        argument, method_handler.request_deserializer, method_handler.response_serializer,
        is_short=len(message) <= SHORT_BYTES,
    )  # fmt: skip


def _without_message(threads: CallThreads, task: CallFuture, rpc_event: Any, state: Any) -> Any:
    """End a call whose caller left, or half-closed without a message, which gets an error."""
    with state.condition:
        if state.client is server._OPEN:
            state.client = server._CLOSED
        if state.client is server._CLOSED:
            server._abort(state, rpc_event.call, cygrpc.StatusCode.unimplemented, _NO_MESSAGE)
        finished = server._possibly_finish_call(state, server._RECEIVE_MESSAGE_TOKEN)
    threads.drop(task)
    return finished


Send: TypeAlias = Callable[[bytes | None], None]
"""gRPC's function for sending a message, which may block; None ends the stream with the context's status."""


class StreamListener(Protocol):
    """Gets the events of a stream, in a thread that must not block."""

    def came(self, data: bytes) -> None:
        """The requested message has come."""

    def no_more_come(self, has_left: bool) -> None:
        """No message will come: the caller has half-closed the stream, or has left."""

    def was_taken(self) -> None:
        """The answer is on its way, and the next one may follow."""

    def break_off(self) -> None:
        """Log the current exception, which nothing else handles, and end the stream at once."""


class StreamIO(Protocol):
    """One message at a time in each direction."""

    def ask(self) -> None:
        """Request the next message; the listener is called with it or its absence, perhaps before this returns."""

    def send(self, answer: bytes) -> bool:
        """Send an answer. True: the listener will be called. False: it was taken already, or the caller is gone."""

    def end(self) -> None:
        """End the stream with the context's status."""


def flow_of(
    requests: Iterator[bytes], context: grpc.ServicerContext, send: Send, listener: StreamListener, threads: CallThreads
) -> StreamIO:
    """The stream's input and output in place of gRPC's own, as bytes on both sides. Whatever blocks runs in
    `threads`.
    """
    return _Events(context, send, listener) if is_on() else _Waits(requests, send, listener, threads)


class _Events:
    """On the fast path."""

    def __init__(self, context: Any, send: Send, listener: StreamListener) -> None:
        self._state = context._state
        self._call = context._rpc_event.call
        self._end = send
        self._listener = listener

    def ask(self) -> None:
        """See `StreamIO`."""
        state, token = self._state, server._RECEIVE_MESSAGE_TOKEN
        with state.condition:
            if is_active := server._is_rpc_state_active(state):
                operations = (cygrpc.ReceiveMessageOperation(server._EMPTY_FLAGS),)
                self._call.start_server_batch(operations, self._received)
                state.due.add(token)
        if not is_active:
            self._listener.no_more_come(has_left=True)

    def send(self, answer: bytes) -> bool:
        """See `StreamIO`."""
        state, token = self._state, server._SEND_MESSAGE_TOKEN
        with state.condition:
            if not server._is_rpc_state_active(state):
                return False
            operations = [cygrpc.SendMessageOperation(answer, server._get_send_message_op_flags_from_state(state))]
            if state.initial_metadata_allowed:
                operations.insert(0, server._get_initial_metadata_operation(state, None))
                state.initial_metadata_allowed = False
            self._call.start_server_batch(operations, self._sent)
            state.due.add(token)
            server._reset_per_message_state(state)
        return True

    def end(self) -> None:
        """See `StreamIO`."""
        self._end(None)

    def _received(self, event: Any) -> Any:
        state = self._state
        data: bytes | None = event.batch_operations[0].message()
        with state.condition:
            finished = server._possibly_finish_call(state, server._RECEIVE_MESSAGE_TOKEN)
            has_left = state.client is server._CANCELLED
        _tell_of(self._listener, data, has_left)
        return finished

    def _sent(self, _: Any) -> Any:
        state = self._state
        with state.condition:
            finished = server._possibly_finish_call(state, server._SEND_MESSAGE_TOKEN)
        _tell(self._listener, self._listener.was_taken)
        return finished


class _Waits:
    """For any gRPC: a thread blocks for each message, and sending blocks until the message was taken."""

    def __init__(self, requests: Iterator[bytes], send: Send, listener: StreamListener, threads: CallThreads) -> None:
        self._requests = requests
        self._send = send
        self._listener = listener
        self._threads = threads

    def ask(self) -> None:
        """See `StreamIO`."""
        self._threads.submit(self._read)

    def send(self, answer: bytes) -> bool:
        """See `StreamIO`."""
        yield_permit()
        self._send(answer)
        return False

    def end(self) -> None:
        """See `StreamIO`."""
        self._send(None)

    def _read(self) -> None:
        started()
        yield_permit()
        data, has_left = None, False
        try:
            data = next(self._requests, None)
        except Exception:  # noqa: BLE001 (gRPC raises a bare `RpcError`)
            has_left = True
        _tell_of(self._listener, data, has_left)


def _tell_of(listener: StreamListener, data: bytes | None, has_left: bool) -> None:
    """Report a message or its absence."""
    _tell(listener, (lambda: listener.no_more_come(has_left)) if data is None else lambda: listener.came(data))


def _tell(listener: StreamListener, how: Callable[[], None]) -> None:
    """Call the listener; gRPC's event thread must go on, whatever it raises."""
    try:
        how()
    except Exception:  # noqa: BLE001 (a bug: nothing else would end the stream)
        listener.break_off()
