"""Calls that take one message get their thread when that has come, and not with their headers.

gRPC's server has a thread wait for the message of each call: two changes of threads for every small request, a fifth of
its time, and a thread for whoever sends headers and nothing else. There is no other way in public. So its own module is
changed here, for servers whose threads are `CallThreads`, and only where the few functions that are used are those
known. Elsewhere all stays as it is. `Arrivals` watches over the waits either way.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from upwell.shared.oip.threads import CallThreads, Ended

# Both have no types of their own.
_server: Any = importlib.import_module("grpc._server")
_cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")

_FUNCTIONS = {
    "_handle_unary_unary": ("rpc_event", "state", "method_handler", "default_thread_pool"),
    "_unary_response_in_pool": (
        "rpc_event", "state", "behavior", "argument_thunk", "request_deserializer", "response_serializer",
    ),
    "_possibly_finish_call": ("state", "token"),
    "_abort": ("state", "call", "code", "details"),
}  # fmt: skip
_NAMES = ("_RECEIVE_MESSAGE_TOKEN", "_OPEN", "_CLOSED", "_EMPTY_FLAGS", "_common")
_NO_MESSAGE = b"the call ended without a message; this method takes exactly one"
_UNREADABLE = b"Exception deserializing request!"

_former: Any = getattr(_server, "_handle_unary_unary", None)


def begin_with_the_message() -> bool:
    """From now on, calls to servers with `CallThreads` begin when their message has come; whether gRPC lets them."""
    if not _is_known():
        return False
    _server._handle_unary_unary = _handle
    return True


def _is_known() -> bool:
    try:
        has_functions = all(
            tuple(inspect.signature(_former if name == "_handle_unary_unary" else getattr(_server, name)).parameters)
            == parameters
            for name, parameters in _FUNCTIONS.items()
        )
    except (AttributeError, TypeError, ValueError):
        return False
    return (
        has_functions and all(hasattr(_server, name) for name in _NAMES) and hasattr(_cygrpc, "ReceiveMessageOperation")
    )


def _handle(rpc_event: Any, state: Any, method_handler: Any, default_thread_pool: Any) -> Any:
    """In place of `grpc._server._handle_unary_unary`: in its thread of events, with the lock of the call's state."""
    if not isinstance(default_thread_pool, CallThreads):
        return _former(rpc_event, state, method_handler, default_thread_pool)
    task = default_thread_pool.expect()

    def received(event: Any) -> Any:
        message = event.batch_operations[0].message()
        if message is None:
            return _without_message(default_thread_pool, task, rpc_event, state)
        with state.condition:
            finished = _server._possibly_finish_call(state, _server._RECEIVE_MESSAGE_TOKEN)
        _begin(default_thread_pool, task, rpc_event, state, method_handler, message)
        return finished

    rpc_event.call.start_server_batch((_cygrpc.ReceiveMessageOperation(_server._EMPTY_FLAGS),), received)
    state.due.add(_server._RECEIVE_MESSAGE_TOKEN)
    return task


def _begin(threads: CallThreads, task: Ended, rpc_event: Any, state: Any, method_handler: Any, message: bytes) -> None:
    def argument() -> Any:
        request = _server._common.deserialize(message, method_handler.request_deserializer)
        if request is None:
            with state.condition:
                _server._abort(state, rpc_event.call, _cygrpc.StatusCode.internal, _UNREADABLE)
        return request

    threads.begin(
        task, state.context.run, _server._unary_response_in_pool, rpc_event, state, method_handler.unary_unary,
        argument, method_handler.request_deserializer, method_handler.response_serializer,
    )  # fmt: skip


def _without_message(threads: CallThreads, task: Ended, rpc_event: Any, state: Any) -> Any:
    """The caller has left, or has ended its side with nothing said, which it is told."""
    with state.condition:
        if state.client is _server._OPEN:
            state.client = _server._CLOSED
        if state.client is _server._CLOSED:
            _server._abort(state, rpc_event.call, _cygrpc.StatusCode.unimplemented, _NO_MESSAGE)
        finished = _server._possibly_finish_call(state, _server._RECEIVE_MESSAGE_TOKEN)
    threads.drop(task)
    return finished
