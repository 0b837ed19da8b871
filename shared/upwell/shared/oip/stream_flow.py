"""The two directions of a stream, each one message ahead of whoever reads and writes.

gRPC's server asks the connection for a message when it is wanted, and comes back from sending one when the connection
has taken it: four changes of threads for each request and its answer. Here the next request is on its way while the
last one is answered, and an answer while the next one is made. So a stream holds one more message in each direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from upwell.shared.oip import grpc_inside
from upwell.shared.oip.grpc_inside import cygrpc, server

Send = Callable[[bytes | None], None]
"""Sends a message, and returns when the connection has taken the one before; None ends the stream with the context's
status."""


_IS_KNOWN = grpc_inside.is_known()


def ahead(requests: Iterator[bytes], context: grpc.ServicerContext, send: Send) -> tuple[Iterator[bytes], Send]:
    """What to read from and to write with instead of gRPC's own, if it is a gRPC known here. Bytes on both sides."""
    if not _IS_KNOWN:
        return requests, send
    inside: Any = context
    return _Requests(inside._state, inside._rpc_event.call), _Answers(inside._state, inside._rpc_event.call, send).send


class _Requests:
    """Used by one thread at a time."""

    def __init__(self, state: Any, call: Any) -> None:
        self._state = state
        self._call = call
        self._is_asked = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next request. Raises `grpc.RpcError` where the caller has left."""
        state = self._state
        with state.condition:
            if not self._is_asked:
                self._ask()
            while state.request is None and state.client is not server._CANCELLED:
                if server._RECEIVE_MESSAGE_TOKEN not in state.due:
                    raise StopIteration
                state.condition.wait()
            if state.client is server._CANCELLED:
                error = grpc.RpcError()
                state.rpc_errors.append(error)  # so that gRPC does not take it for ours
                raise error
            request: bytes = state.request
            state.request = None
            self._ask()
            return request

    def _ask(self) -> None:
        state = self._state
        self._is_asked = True
        if server._is_rpc_state_active(state):
            operations = (cygrpc.ReceiveMessageOperation(server._EMPTY_FLAGS),)
            self._call.start_server_batch(operations, server._receive_message(state, self._call, None))
            state.due.add(server._RECEIVE_MESSAGE_TOKEN)


class _Answers:
    """Used by one thread at a time."""

    def __init__(self, state: Any, call: Any, end: Send) -> None:
        self._state = state
        self._call = call
        self._end = end
        self._sending: str | None = None

    def send(self, answer: bytes | None) -> None:
        """See `Send`."""
        state = self._state
        with state.condition:
            while self._sending in state.due:
                state.condition.wait()
            if answer is not None and server._is_rpc_state_active(state):
                self._start(answer)
        if answer is None:
            self._end(None)

    def _start(self, answer: bytes) -> None:
        state, token = self._state, server._SEND_MESSAGE_TOKEN
        operations = [cygrpc.SendMessageOperation(answer, server._get_send_message_op_flags_from_state(state))]
        if state.initial_metadata_allowed:
            operations.insert(0, server._get_initial_metadata_operation(state, None))
            state.initial_metadata_allowed = False
            token = server._SEND_INITIAL_METADATA_AND_SEND_MESSAGE_TOKEN
        self._call.start_server_batch(operations, server._send_message(state, token))
        state.due.add(token)
        self._sending = token
        server._reset_per_message_state(state)
