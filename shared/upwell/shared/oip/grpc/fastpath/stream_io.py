"""The two directions of a stream without blocked threads: callbacks report each message received or sent.

gRPC's server blocks a thread for each message of a stream, and for the sending of each answer: four thread switches per
request. Here no thread belongs to a stream; the thread that handles gRPC's events calls the listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import grpc

from upwell.shared.oip.grpc.fastpath import inner_parts
from upwell.shared.oip.grpc.fastpath.inner_parts import cygrpc, server
from upwell.shared.platform.call_threads import CallThreads, started, yield_permit

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
    return _Events(context, send, listener) if inner_parts.is_on() else _Waits(requests, send, listener, threads)


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
