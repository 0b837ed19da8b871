"""One stream of `ModelStreamInfer`: requests in, answers out in the same order, several at a time where it pays."""

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
from upwell.shared.oip.auth.callers import client_key, current_caller, renewed, set_caller
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import Dataplane, InferRequest
from upwell.shared.oip.grpc.calls import call_of, failure, infer, read_request, serialized
from upwell.shared.oip.grpc.fastpath.polling import SHORT_BYTES
from upwell.shared.oip.grpc.fastpath.stream_io import Send, flow_of
from upwell.shared.oip.statuses import Status
from upwell.shared.platform.call_threads import CallFuture, CallThreads, goes_on

_GROWTH = 1.5
"""Factor by which an answer may take longer than the previous one without counting as slower."""

_OK = Status(grpc.StatusCode.OK, "")
_LEFT = Status(grpc.StatusCode.CANCELLED, "the caller has left")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamLimits:
    """What streams may take of a server. A stream that ends for one of the times may be opened again at once.

    Of the `streams` each has one request answered at a time, and the next one is read meanwhile. Where answers take
    longer than `quick_s`, up to `ahead` are under way, each in a thread of its own, of which all streams together have
    `helpers` beside the first of each. What is not answered yet counts, until the client has taken the answer: one
    that reads slowly cannot pile answers up. `idle_s`: without a request. `stall_s`: an answer that the client does
    not take. `age_s`: for what a caller may do is found out when its stream opens. `spare_s`: silent for so long, it
    may have to make room for another one.
    """

    streams: int = 64
    ahead: int = 16
    helpers: int = 64
    quick_s: float = 0.001
    idle_s: float = 300.0
    stall_s: float = 60.0
    age_s: float = 3600.0
    spare_s: float = 1.0

    @property
    def threads(self) -> int:
        """How many there may have to be: one that waits for a request of each stream, and one for each under way."""
        return 2 * self.streams + self.helpers


@dataclass(frozen=True)
class StreamResources:
    """What the streams of a server share. `helpers` are threads beside the first of each; `forget` is told of ends."""

    dataplane: Dataplane
    limits: StreamLimits
    threads: CallThreads
    helpers: threading.Semaphore
    forget: Callable[[Stream], None]


class Stream:
    """Answers the requests of one call. It has no thread: what comes is told, and one of the shared threads answers it.

    One request is asked for at a time, one answer is written at a time, and the state belongs to whoever holds `_lock`.
    Whoever leaves has another see to what is left: a request that waits is taken by who is at work, an answer that
    waits for its turn is written when the one before it has been taken.
    """

    def __init__(
        self, resources: StreamResources, requests: Iterator[bytes], context: grpc.ServicerContext, send: Send
    ) -> None:
        self._dataplane, self._limits = resources.dataplane, resources.limits
        self._threads, self._helpers = resources.threads, resources.helpers
        self._forget = resources.forget
        self._flow = flow_of(requests, context, send, self, self._threads)
        self._context = context
        self._call = call_of(context)
        self._variables = copy_context()  # by which it is known who calls
        self._lock = threading.Lock()
        self._is_reading = self._is_writing = self._has_ended = False
        self._read = self._written = 0  # requests, and answers
        self._at_work = 0  # threads
        self._waiting: deque[tuple[int, bytes]] = deque()  # requests that have come while others are at work
        self._answers: dict[int, bytes | None] = {}  # not yet written, by number; None: there is none
        self._took_s = 0.0
        self._end: Status | None = None
        self._opened_s = self._quiet_s = self._writing_s = time.monotonic()

    def read_on(self) -> None:
        """Ask for the next request, if it may be read."""
        with self._lock:
            has_room = not self._waiting and self._read - self._written < self._limits.ahead
            if self._is_reading or self._end is not None or not has_room:
                return
            self._is_reading = True
        self._flow.ask()

    def came(self, data: bytes) -> None:
        """See `Told`."""
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
        """See `Told`."""
        self.end(_LEFT if has_left else _OK)

    def was_taken(self) -> None:
        """See `Told`."""
        self._went_on()
        self._write()

    def end(self, status: Status) -> None:
        """Read no more, and end the stream with `status` when what has been read is answered.

        The first status holds; but that the caller has said all, which may come while its last request is at work, says
        nothing against a failure of that.
        """
        with self._lock:
            if self._end is None or self._end is _OK:
                self._end = status
            is_done = self._is_done()
        if is_done:
            self._finish()

    def break_off(self) -> None:
        """See `Told`."""
        _log.exception("a stream was cut off")
        self._context.cancel()
        with self._lock:
            self._end = self._end or _LEFT
            self._waiting.clear()
            has_ended, self._has_ended = self._has_ended, True
        if not has_ended:
            self._forget(self)

    @property
    def client(self) -> str:
        """Whose it is: a token's or certificate's name, or an address without its port."""
        return client_key(self._call.client)

    def silent_s(self, now_s: float) -> float:
        """For how long it has been its client's turn: no request has come, or an answer has not been taken."""
        with self._lock:
            if self._is_writing:
                return now_s - self._writing_s
            return now_s - self._quiet_s if self._read == self._written else 0.0

    def make_room(self) -> None:
        """End it, so that another client can have one: at once where it does not even take an answer."""
        if self._is_writing:
            self._context.cancel()
        self.end(_over("other clients are waiting for a stream"))

    def check(self, now_s: float) -> None:
        """End the stream if one of its times is up."""
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
        except BaseException:  # noqa: BLE001 (a bug, or a dataplane that wants to exit: nobody else would end the stream)
            self.break_off()
            with self._lock:
                self._leave()

    def _next(self) -> tuple[int, bytes] | None:
        """The next request for the thread that has answered one; None where it leaves."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._leave()
            return None

    def _leave(self) -> None:
        """A thread is at work no more. The lock is held."""
        self._at_work -= 1
        if self._at_work > 0:
            self._helpers.release()

    def _answer(self, data: bytes) -> bytes | None:
        """The message that answers a request; None where the server takes no more, and the stream is to end."""
        request: InferRequest | None = None
        started_s = time.monotonic()
        try:
            caller = renewed(current_caller())  # a token may be gone, or may do less, since the stream began
            if caller is not None:
                set_caller(caller)
            with self._dataplane.reading(self._call, len(data)):
                request = read_request(data)
            answer = serialized(converters.serialize_stream_response, infer(self._dataplane, request, self._call))
        except Exception as error:  # noqa: BLE001 (the boundary: a bug must not show its insides to the caller)
            status = failure(error)
            if isinstance(error, Unauthenticated) or (isinstance(error, Unavailable) and not self._dataplane.ready()):
                self.end(status)
                return None
            answer = converters.serialize_stream_error(status.text, status.code.name, request)
        # The least of the latest: one that had to wait for the interpreter's lock looks slow.
        self._took_s = min(time.monotonic() - started_s, _GROWTH * self._took_s or math.inf)
        return answer

    def _put(self, number: int, answer: bytes | None) -> None:
        """Write what can be written now that this answer is there, unless one is on its way."""
        with self._lock:
            self._answers[number] = answer
            if self._is_writing:
                return
            self._is_writing = True
        self._write()

    def _write(self) -> None:
        """Send the next answer if it is there. Of whoever has set `_is_writing`, or is told that it was taken."""
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
        """An answer is written, so that there may be room for a request."""
        with self._lock:
            self._written += 1
            self._quiet_s = time.monotonic()
        self.read_on()

    def _is_done(self) -> bool:
        """Whether the end has come, which is so once only. Whoever learns it finishes the call."""
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
        except Exception:  # noqa: BLE001 (whoever watches over the others, or sees to gRPC's events, has to go on)
            self.break_off()
        self._forget(self)


def _over(why: str) -> Status:
    return Status(grpc.StatusCode.UNAVAILABLE, f"{why}, so this stream ends; open a new one")
