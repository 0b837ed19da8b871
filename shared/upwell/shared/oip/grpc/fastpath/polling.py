"""Lets the threads that run gRPC's calls wait for its events too, so that one thread reads and answers a small request.

gRPC's server has one thread for events, which hands each call to another. For a small request that switch, and the
contention of both threads for the GIL, cost a third of the time. gRPC has no public option for it, so its own module is
changed here, for servers whose threads are `CallThreads` with a limit on active tasks: their calls say when they wait,
and then another thread waits for events.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from upwell.shared.oip.grpc.fastpath import inner_parts
from upwell.shared.oip.grpc.fastpath.inner_parts import cygrpc, server
from upwell.shared.platform.call_threads import CallFuture, CallThreads

SHORT_BYTES = 1 << 16
"""Maximum message size for inline handling. Larger messages take longer than a thread switch, and events should not
wait for them."""


def serve(state: Any) -> None:
    """Replaces `grpc._server._serve`, which runs in a thread of its own."""
    threads = state.thread_pool
    next_event = functools.partial(_next_event, state)
    if not isinstance(threads, CallThreads) or threads.at_work is None or not threads.poll(next_event):
        inner_parts.serve(state)


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
        return inner_parts.handle_unary_unary(rpc_event, state, method_handler, default_thread_pool)
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
