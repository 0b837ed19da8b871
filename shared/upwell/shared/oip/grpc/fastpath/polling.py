"""gRPC's events are awaited by the threads that run its calls: who reads a small request answers it.

gRPC's server has one thread for events, which hands each call to another. For a small request that change of threads,
and the two fighting for the interpreter's lock, cost a third of its time. There is no other way in public, so its own
module is changed here, for servers whose threads are `CallThreads` of which only some are at work at once: their calls
say when they wait, and then another thread waits for events.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from upwell.shared.oip.grpc.fastpath import inner_parts
from upwell.shared.oip.grpc.fastpath.inner_parts import cygrpc, server
from upwell.shared.platform.call_threads import CallThreads

SHORT_BYTES = 1 << 16
"""What is larger takes longer than a change of threads, and its sender is better read from without a pause."""


def serve(state: Any) -> None:
    """In place of `grpc._server._serve`: in a thread of its own, which this one does without."""
    threads = state.thread_pool
    next_event = functools.partial(_next_event, state)
    if not isinstance(threads, CallThreads) or threads.at_work is None or not threads.poll(next_event):
        inner_parts.serve(state)


def _next_event(state: Any) -> Any:
    """What gRPC's thread of events does again and again. False where there will be no more."""
    event = state.completion_queue.poll(time.time() + server._DEALLOCATED_SERVER_CHECK_PERIOD_S)
    if state.server_deallocated:
        server._begin_shutdown_once(state)
    if event.completion_type == cygrpc.CompletionType.queue_timeout:
        return True
    return server._process_event_and_continue(state, event)
