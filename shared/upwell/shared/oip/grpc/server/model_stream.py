"""`ModelStreamInfer` as Triton defines it: many requests and their answers over one call.

A message costs less than a call, since nothing is set up, looked up or torn down. A failed request gets an answer of
its own (`error_message`, and the request's ID), and the stream goes on. Answers come in the order of the requests, as
Triton answers for models with one answer per request, which all models here are; several are in progress if that pays.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass

import grpc

from upwell.shared.errors import Unauthenticated, Unavailable
from upwell.shared.oip.auth.caller import client_key, current_caller, renewed, set_caller
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.dataplane import Dataplane, InferRequest
from upwell.shared.oip.error_statuses import Status
from upwell.shared.oip.grpc.fastpath.inner_parts import SHORT_BYTES, Send, flow_of
from upwell.shared.oip.grpc.server.servicer import call_of, failure, infer, read_request, serialized
from upwell.shared.oip.grpc.server.slow_clients import UnreadAnswers
from upwell.shared.platform.call_threads import CallFuture, CallThreads, goes_on

METHOD = "ModelStreamInfer"

_GROWTH = 1.5
"""Factor by which an answer may take longer than the previous one without counting as slower."""

_OK = Status(grpc.StatusCode.OK, "")
_LEFT = Status(grpc.StatusCode.CANCELLED, "the caller has left")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamLimits:
    """Limits of streams. A stream that ends for one of the times may be opened again at once.

    Each of the `streams` has one request answered at a time, while the next one is read. If answers take longer than
    `quick_s`, up to `ahead` are in progress, each in a thread of its own, of which all streams together have `helpers`
    beside the first of each. A request counts until the client has taken its answer, so a slow reader cannot pile up
    answers; of large ones fewer are in progress (`Stream`), and those above `answer_bytes` are refused. Times in
    seconds: `idle_s` without a request; `stall_s` for an answer that the client does not take; `age_s` of a stream,
    since permissions are checked when it opens; after `spare_s` of silence it may be ended to make room.
    """

    streams: int = 64
    ahead: int = 16
    helpers: int = 64
    quick_s: float = 0.001
    idle_s: float = 300.0
    stall_s: float = 60.0
    age_s: float = 3600.0
    spare_s: float = 1.0
    answer_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    @property
    def threads(self) -> int:
        """Maximum number of threads: one per stream that waits for a request, and one per request in progress."""
        return 2 * self.streams + self.helpers


@dataclass(frozen=True)
class StreamResources:
    """Shared by the streams of a server. `helpers` are threads beside the first of each; `forget` is called at the
    end."""

    dataplane: Dataplane
    limits: StreamLimits
    threads: CallThreads
    helpers: threading.Semaphore
    unread: UnreadAnswers
    forget: Callable[[Stream], None]


class Stream:
    """Answers the requests of one call. It has no thread: events call it, and the shared threads answer requests.

    One request is awaited at a time, one answer is written at a time, and `_lock` guards the state. A thread that
    leaves hands over what is left: a waiting request is taken by an active thread, and an answer that waits for its
    turn is written when the one before it has been taken.

    A request is read if its answer and the unread ones of the stream take no more than is left for all streams
    together. So the answers of one stream that nobody reads take at most half of the memory, those of n streams the
    (n + 1)th part each (Choudhury and Hahne 1998: dynamic queue length thresholds). Where nothing is in progress, a
    request is read in any case.
    """

    def __init__(
        self, resources: StreamResources, requests: Iterator[bytes], context: grpc.ServicerContext, send: Send
    ) -> None:
        self._dataplane, self._limits = resources.dataplane, resources.limits
        self._threads, self._helpers, self._unread = resources.threads, resources.helpers, resources.unread
        self._forget = resources.forget
        self._flow = flow_of(requests, context, send, self, self._threads)
        self._context = context
        self._call = call_of(context)
        self._variables = copy_context()  # identifies the caller
        self._lock = threading.Lock()
        self._is_reading = self._is_writing = self._has_ended = False
        self._read = self._written = 0  # numbers of requests and of answers
        self._at_work = 0  # active threads
        self._waiting: deque[tuple[int, bytes]] = deque()  # requests that came while all threads were busy
        self._answers: dict[int, bytes | None] = {}  # not yet written, by number; None: no answer
        self._unread_keys: dict[int, tuple[tuple[int, int], int]] = {}  # and sizes, of large answers not yet taken
        self._unread_bytes = 0
        self._answer_bytes = 0  # of the latest answer; 0 if that was small
        self._took_s = 0.0
        self._end: Status | None = None
        self._opened_s = self._quiet_s = self._writing_s = time.monotonic()

    def read_on(self) -> None:
        """Request the next message, if it may be read."""
        with self._lock:
            if self._is_reading or self._end is not None or not self._has_room():
                return
            self._is_reading = True
        self._flow.ask()

    def came(self, data: bytes) -> None:
        """See `StreamListener`."""
        with self._lock:
            self._is_reading = False
            if self._end is not None:
                return
            number = self._read
            self._read += 1
            if not self._may_begin():
                self._waiting.append((number, data))
                return
            self._at_work += 1
        self._begin(number, data)

    def no_more_come(self, has_left: bool) -> None:
        """See `StreamListener`."""
        self.end(_LEFT if has_left else _OK)

    def was_taken(self) -> None:
        """See `StreamListener`."""
        self._went_on()
        self._write()

    def end(self, status: Status) -> None:
        """Read no more, and end the stream with `status` once all requests that were read are answered.

        The first status wins, except that a half-close, which may come while the last request is in progress, does not
        hide the failure of that request.
        """
        with self._lock:
            if self._end is None or self._end is _OK:
                self._end = status
            is_done = self._is_done()
        if is_done:
            self._finish()

    def break_off(self) -> None:
        """See `StreamListener`."""
        _log.exception("a stream was cut off")
        self._context.cancel()
        with self._lock:
            self._end = self._end or _LEFT
            self._waiting.clear()
            has_ended, self._has_ended = self._has_ended, True
            for number in list(self._unread_keys):
                self._was_read(number)
        if not has_ended:
            self._forget(self)

    @property
    def client(self) -> str:
        """The client's key: a token's or certificate's name, or an address without its port."""
        return client_key(self._call.client)

    def silent_s(self, now_s: float) -> float:
        """Seconds for which the client has neither sent a request nor taken an answer."""
        with self._lock:
            if self._is_writing:
                return now_s - self._writing_s
            return now_s - self._quiet_s if self._read == self._written else 0.0

    def make_room(self) -> None:
        """End the stream to make room for another client: at once if the client does not even take an answer."""
        if self._is_writing:
            self._context.cancel()
        self.end(_over("other clients are waiting for a stream"))

    def check(self, now_s: float) -> None:
        """End the stream if one of its time limits has passed."""
        limits = self._limits
        with self._lock:
            stalled_s = now_s - self._writing_s if self._is_writing else 0.0
            idle_s = now_s - self._quiet_s if self._read == self._written else 0.0
        if stalled_s > limits.stall_s:
            self._context.cancel()
        elif idle_s > limits.idle_s:
            self.end(_over(f"no request came for {limits.idle_s:g} s"))
        elif now_s - self._opened_s > limits.age_s:
            self.end(_over(f"the stream is {limits.age_s:g} s old"))

    def _has_room(self) -> bool:
        """Whether another request may be read. The lock is held."""
        in_progress = self._read - self._written
        if self._waiting or in_progress >= self._limits.ahead:
            return False
        if not in_progress or not (self._answer_bytes or self._unread_bytes):
            return True
        to_come = in_progress - len(self._unread_keys) + 1
        return self._unread_bytes + to_come * self._answer_bytes <= self._unread.free_bytes

    def _may_begin(self) -> bool:
        """Whether a request that has come gets a thread now. The lock is held."""
        if self._at_work == 0:
            return True
        return self._took_s > self._limits.quick_s and self._helpers.acquire(blocking=False)

    def _begin(self, number: int, data: bytes) -> None:
        # A context can be entered by one thread at a time.
        work = self._variables.copy().run
        self._threads.begin(CallFuture(), work, self._work, number, data, is_short=len(data) <= SHORT_BYTES)

    def _work(self, number: int, data: bytes) -> None:
        """Answer a request, and those that have come meanwhile."""
        try:
            while True:
                self.read_on()
                self._put(number, self._answer(data))
                next_message = self._next()
                if next_message is None:
                    return
                number, data = next_message
                if not goes_on():
                    self._begin(number, data)
                    return
        except BaseException:  # noqa: BLE001 (a bug, or a dataplane that exits: nothing else would end the stream)
            self.break_off()
            with self._lock:
                self._leave()

    def _next(self) -> tuple[int, bytes] | None:
        """The next request for the thread that has answered one; None if it leaves."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._leave()
            return None

    def _leave(self) -> None:
        """Count one active thread less. The lock is held."""
        self._at_work -= 1
        if self._at_work > 0:
            self._helpers.release()

    def _answer(self, data: bytes) -> bytes | None:
        """The message that answers a request; None if the server accepts no more, and the stream must end."""
        request: InferRequest | None = None
        started_s = time.monotonic()
        try:
            caller = renewed(current_caller())  # the token may be revoked, or have fewer permissions, by now
            if caller is not None:
                set_caller(caller)
            with self._dataplane.reading(self._call, len(data)):
                request = read_request(data)
            response = infer(self._dataplane, request, self._call)
            answer = serialized(converters.serialize_stream_response, response, self._limits.answer_bytes)
        except Exception as error:  # noqa: BLE001 (the boundary: callers must not see the inside of a bug)
            status = failure(error)
            if isinstance(error, Unauthenticated) or (isinstance(error, Unavailable) and not self._dataplane.ready()):
                self.end(status)
                return None
            answer = converters.serialize_stream_error(status.text, status.code.name, request)
        # The smaller of the latest two, since a request that had to wait for the GIL looks slow.
        self._took_s = min(time.monotonic() - started_s, _GROWTH * self._took_s or math.inf)
        return answer

    def _put(self, number: int, answer: bytes | None) -> None:
        """Store an answer and write what can be written, unless a write is in progress."""
        with self._lock:
            self._answers[number] = answer
            if answer is not None and not self._has_ended:
                key = self._unread.add(self._context, answer, number)
                self._answer_bytes = 0 if key is None else len(answer)
                if key is not None:
                    self._unread_keys[number] = key, len(answer)
                    self._unread_bytes += len(answer)
            if self._is_writing:
                return
            self._is_writing = True
        self._write()

    def _write(self) -> None:
        """Send the next answer if it exists. Only for the thread that set `_is_writing` or learned of the last
        write."""
        while True:
            with self._lock:
                if self._written not in self._answers:
                    self._is_writing = False
                    is_done = self._is_done()
                    break
                answer = self._answers.pop(self._written)
                self._writing_s = time.monotonic()
            if answer is not None and self._flow.send(answer):
                return
            self._went_on()
        if is_done:
            self._finish()

    def _went_on(self) -> None:
        """After an answer was written there may be room for a request."""
        with self._lock:
            self._was_read(self._written)
            self._written += 1
            self._quiet_s = time.monotonic()
        self.read_on()

    def _was_read(self, number: int) -> None:
        """The client has taken an answer, or never will. The lock is held."""
        found = self._unread_keys.pop(number, None)
        if found is not None:
            key, size_bytes = found
            self._unread_bytes -= size_bytes
            self._unread.remove(key)

    def _is_done(self) -> bool:
        """Whether the stream has ended; True only once, and the caller must then finish the call."""
        if self._end is None or self._read != self._written or self._has_ended:
            return False
        self._has_ended = True
        return True

    def _finish(self) -> None:
        try:
            if self._end is not None and self._end is not _OK:
                self._context.set_code(self._end.code)
                self._context.set_details(self._end.text)
            self._flow.end()
        except Exception:  # noqa: BLE001 (the thread that watches other streams, or handles gRPC's events, must go on)
            self.break_off()
        self._forget(self)


def _over(why: str) -> Status:
    return Status(grpc.StatusCode.UNAVAILABLE, f"{why}, so this stream ends; open a new one")
