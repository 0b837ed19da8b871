"""A server's open streams: how many there may be, which client's ends to make room, and what each is watched for."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator

import grpc

from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.error_statuses import Status
from upwell.shared.oip.grpc.fastpath.inner_parts import Send
from upwell.shared.oip.grpc.server.model_stream import METHOD, Stream, StreamLimits, StreamResources
from upwell.shared.oip.grpc.server.servicer import SERVICE, abort
from upwell.shared.oip.grpc.server.slow_clients import UnreadAnswers
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.call_threads import CallThreads

DEFAULT_LIMITS = StreamLimits()

_CLOSING = Status(grpc.StatusCode.UNAVAILABLE, "the server is closing and accepts no more requests")
_LEAST_TICK_S = 0.01
_log = logging.getLogger(__name__)


class Streams:
    """The streams of one server: opens, watches and ends them. Thread-safe.

    Requests are answered in `threads`, which has `limits.threads` for them; `unread` counts the answers.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        threads: CallThreads,
        unread: UnreadAnswers,
        limits: StreamLimits = DEFAULT_LIMITS,
    ) -> None:
        self._dataplane = dataplane
        self._threads = threads
        self._limits = limits
        helpers = threading.Semaphore(limits.helpers)
        self._resources = StreamResources(dataplane, limits, threads, helpers, unread, self._forget)
        self._lock = threading.Lock()
        self._open: set[Stream] = set()
        self._leaving: set[Stream] = set()  # ending, to make room for another one
        self._watch: threading.Thread | None = None
        self._wake = threading.Event()
        self._end: Status | None = None

    def open(self, requests: Iterator[bytes], context: grpc.ServicerContext, send: Send) -> None:
        """Start serving one stream."""
        stream = Stream(self._resources, requests, context, send)
        with self._lock:
            refusal, spared = self._end, None
            if refusal is None and len(self._open) >= self._limits.streams:
                spared = self._spare()
            if refusal is None and len(self._open) >= self._limits.streams:
                text = f"{self._limits.streams} streams are already open, the most allowed; send single requests"
                refusal = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            if refusal is None:
                self._open.add(stream)
                if self._watch is None:
                    self._watch = self._begin_to_watch()
        if refusal is not None:
            abort(context, refusal)
        if spared is not None:
            spared.make_room()
        stream.read_on()

    def add_to(self, server: grpc.Server) -> None:
        """Register the method with `server`, before it starts."""

        def open_one(requests: Iterator[bytes], context: grpc.ServicerContext, send: Send) -> None:
            self.open(requests, context, send)

        # As in gRPC's own health servicer: the call goes on after the handler has returned, until `send(None)`.
        open_one.__dict__["experimental_non_blocking"] = True
        handler = grpc.stream_stream_rpc_method_handler(open_one)  # type: ignore[var-annotated]  # bytes on both sides
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))

    def end(self) -> None:
        """Open no more streams, read no more, and end each stream (UNAVAILABLE) when what it has read is answered."""
        with self._lock:
            self._end = _CLOSING
            streams = list(self._open)
        for stream in streams:
            stream.end(_CLOSING)
        self._wake.set()

    def _spare(self) -> Stream | None:
        """Remove the stream that was silent longest, of the client with the most streams; None if none was silent for
        `spare_s`. The lock is held.
        """
        now_s = time.monotonic()
        counts = Counter(one.client for one in self._open)
        silent = [(counts[one.client], one.silent_s(now_s), id(one), one) for one in self._open]
        candidates = [one for one in silent if one[1] > self._limits.spare_s]
        if not candidates:
            return None
        spared = max(candidates)[-1]
        self._open.discard(spared)
        self._leaving.add(spared)
        return spared

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._open.discard(stream)
            self._leaving.discard(stream)

    def _begin_to_watch(self) -> threading.Thread | None:
        """Start the watching thread. None if no thread can be started; the next stream tries again."""
        watch = BackgroundThread("oip-streams", self._keep_watch, lambda: self._end is not None)
        try:
            watch.start()
        except RuntimeError as error:
            _log.error("cannot start the thread that watches streams: %s", error)
            return None
        return watch

    def _keep_watch(self) -> None:
        limits = self._limits
        tick_s = max(_LEAST_TICK_S, min(limits.idle_s, limits.stall_s, limits.age_s) / 4)
        while True:
            self._wake.wait(tick_s)
            with self._lock:
                streams = [*self._open, *self._leaving]
                if not streams or self._end is not None:
                    self._watch = None
                    return
            for stream in streams:
                stream.check(time.monotonic())
