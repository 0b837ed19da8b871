"""One stream of `ModelStreamInfer`: requests in, answers out in the same order, several at a time where it pays."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from upwell.shared.errors import Unavailable, UpwellError
from upwell.shared.oip import converters
from upwell.shared.oip.callers import client_key
from upwell.shared.oip.calls import call_of, failure, infer, read_request
from upwell.shared.oip.dataplane import Dataplane, InferRequest
from upwell.shared.oip.statuses import Status
from upwell.shared.oip.stream_flow import Send, ahead

_GROWTH = 1.5
"""An answer may take so many times the one before it to count as no slower."""

_OK = Status(grpc.StatusCode.OK, "")
_LEFT = Status(grpc.StatusCode.CANCELLED, "the caller has left")


@dataclass(frozen=True)
class StreamLimits:
    """What streams may take of a server. A stream that ends for one of the times may be opened again at once.

    Of the `streams` each has a thread, and reads the next request when the last one has been answered. Where answers
    take longer than `quick_s`, it reads on meanwhile, up to `ahead` requests, each in a thread of its own, of which
    all streams together have `helpers`. What is not answered yet counts, until the client has taken the answer: one
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


class Stream:
    """Reads the requests of one call and answers each. Its threads are alike; each reads, answers and writes in turn.

    One thread reads at a time, one writes at a time, and the rest of the state belongs to whoever holds `_lock`. A
    thread leaves (`work` returns) where there is nothing for it to do that another would not do anyway: another reads,
    or so much is under way that nobody may, and whoever finishes some of it reads on. So while the stream is open
    some thread is always in `work`.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        limits: StreamLimits,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        send: Send,
        bring_in: Callable[[Stream], bool],
    ) -> None:
        self._dataplane = dataplane
        self._limits = limits
        self._requests, self._send = ahead(requests, context, send)
        self._context = context
        self._bring_in = bring_in
        self._call = call_of(context)
        self._lock = threading.Lock()
        self._threads = 1
        self._is_reading = self._is_writing = self._has_ended = False
        self._read = self._written = 0  # requests, and answers
        self._answers: dict[int, bytes | None] = {}  # not yet written, by number; None: there is none
        self._took_s = 0.0
        self._end: Status | None = None
        self._opened_s = self._quiet_s = self._writing_s = time.monotonic()

    def work(self) -> bool:
        """Read, answer and write until others can go on alone. True if none is left: the stream is over."""
        while (taken := self._take()) is not None:
            number, data = taken
            if self._took_s > self._limits.quick_s:
                self._share()
            self._put(number, self._answer(data))
        return self._threads == 0

    def end(self, status: Status) -> None:
        """Read no more, and end the stream with `status` when what has been read is answered."""
        with self._lock:
            if self._end is None:
                self._end = status
            is_done = self._is_done()
        if is_done:
            self._finish()

    def break_off(self) -> bool:
        """After `work` has raised: end the call at once. As `work`, True if no thread is left."""
        self._context.cancel()
        with self._lock:
            self._end = self._end or _LEFT
            self._threads -= 1
            return self._threads == 0

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
        self.end(_over("others wait for a stream"))

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

    def _take(self) -> tuple[int, bytes] | None:
        """The next request and its number; None where this thread is to leave, which it has then been counted as."""
        while True:
            with self._lock:
                if not self._may_read():
                    self._threads -= 1
                    return None
                self._is_reading = True
            data = self._receive()
            with self._lock:
                self._is_reading = False
                if data is not None and self._end is None:
                    self._read += 1
                    return self._read - 1, data

    def _receive(self) -> bytes | None:
        """Wait for a request. None where no more will come, which is noted then."""
        try:
            return next(self._requests)
        except StopIteration:
            self.end(_OK)
        except Exception:  # noqa: BLE001 (gRPC raises an `RpcError` without any members)
            self.end(_LEFT)
        return None

    def _may_read(self) -> bool:
        return not self._is_reading and self._end is None and self._read - self._written < self._limits.ahead

    def _share(self) -> None:
        """Let another thread read on meanwhile, if it may and there is one."""
        with self._lock:
            if not self._may_read():
                return
            self._threads += 1
        if not self._bring_in(self):
            with self._lock:
                self._threads -= 1

    def _answer(self, data: bytes) -> bytes | None:
        """The message that answers a request; None where the server takes no more, and the stream is to end."""
        request: InferRequest | None = None
        started_s = time.monotonic()
        try:
            request = read_request(data)
            response = infer(self._dataplane, request, self._call)
            try:
                answer = converters.serialize_stream_response(response)
            except UpwellError as error:
                # The model made what the protocol cannot carry, which is no fault of the caller's.
                raise RuntimeError("the answer cannot be serialized") from error
        except Exception as error:  # noqa: BLE001 (the boundary: a bug must not show its insides to the caller)
            status = failure(error)
            if isinstance(error, Unavailable) and not self._dataplane.ready():
                self.end(status)
                return None
            answer = converters.serialize_stream_error(status.text, status.code.name, request)
        # The least of the latest: one that had to wait for the interpreter's lock looks slow.
        self._took_s = min(time.monotonic() - started_s, _GROWTH * self._took_s or math.inf)
        return answer

    def _put(self, number: int, answer: bytes | None) -> None:
        """Write what can be written now that this answer is there, unless another thread is at it."""
        with self._lock:
            self._answers[number] = answer
            if self._is_writing:
                return
            self._is_writing = True
        sent = 0
        while True:
            with self._lock:
                self._written += sent
                if self._written not in self._answers:
                    self._is_writing = False
                    self._quiet_s = time.monotonic()
                    is_done = self._is_done()
                    break
                answer = self._answers.pop(self._written)
                self._writing_s = time.monotonic()
            if answer is not None:
                self._send(answer)
            sent = 1
        if is_done:
            self._finish()

    def _is_done(self) -> bool:
        """Whether the end has come, which is so once only. Whoever learns it finishes the call."""
        if self._end is None or self._read != self._written or self._has_ended:
            return False
        self._has_ended = True
        return True

    def _finish(self) -> None:
        if self._end is not None and self._end is not _OK:
            self._context.set_code(self._end.code)
            self._context.set_details(self._end.text)
        self._send(None)


def _over(why: str) -> Status:
    return Status(grpc.StatusCode.UNAVAILABLE, f"{why}, which ends it here; open another one")
