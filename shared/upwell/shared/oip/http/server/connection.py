"""One client connection: its requests, one after the other, and their answers.

`RequestScanner` finds the end of a request and refuses what is ambiguous. This module enforces time limits on whole
headers and bodies, accounts for the memory of bodies, and sends answers without copies.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, cast

import numpy as np

from upwell.shared.errors import UpwellError
from upwell.shared.oip.auth.caller import client_key
from upwell.shared.oip.auth.tls_credentials import certificate_name
from upwell.shared.oip.http.replies import CLIENT_CLOSED_REQUEST, Rejected, Reply, error_reply
from upwell.shared.oip.http.server.request import Disconnect, HttpRequest
from upwell.shared.oip.http.server.request_bodies import Share
from upwell.shared.oip.http.server.request_scanner import RequestHead, RequestScanner
from upwell.shared.oip.http.server.routes import Application, Pending, check_size, failure_reply
from upwell.shared.platform.call_threads import CallThreads

HEADERS_S = 10.0
"""Time limit for the handshake, and for all headers of a request."""

IDLE_S = 10.0
"""Time without data after which a client that was sending is dropped."""

SLOWEST_BYTES_PER_S = 4096
"""Minimum rate of a body; slower ones would hold memory for nothing."""

WRITE_S = 60.0
"""Time limit for sending the answer."""

KEPT_S = 75.0
"""Time limit for the next request: longer than proxies keep connections by default, so that they close first."""

SHORT_BYTES = 64 << 10
"""Maximum body size for inline handling: larger ones take longer than a thread switch, and other clients must not wait
for them."""

_LINGER_S = 1.0
_LINGER_BYTES = 16 << 20
_SMALL_BYTES = 16 << 10
_READ_AHEAD_BYTES = 256 << 10

_NO_BODY = memoryview(b"")


@dataclass
class HttpListening:
    """Shared by the connections of a server. `connections` are the open ones; `under_way` counts the requests in
    progress, even if their clients have left.

    One of `threads` at a time runs the event loop. Where the dataplane says when it waits (`at_work`), that thread also
    answers short requests one after the other, with the loop at a stand: a change of threads, or two that contend for
    the interpreter's lock, would cost as much as the answer. If one waits or takes longer than some milliseconds,
    another thread goes on.
    """

    application: Application
    threads: CallThreads
    max_message_bytes: int
    connection_age_s: float
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    connections: set[HttpServerConnection] = field(default_factory=set)
    under_way: int = 0
    is_ending: bool = False
    _is_running: bool = False
    _replies: deque[Callable[[], None]] = field(default_factory=deque)
    _short: deque[Callable[[], None]] = field(default_factory=deque)

    def run(self) -> None:
        """Have the next short request answered in this thread; where there is none run the loop until one comes."""
        self._is_running = True  # before the look at the replies, as `answer` does it the other way round
        try:
            self._deliver()
            if not self._short:
                self.loop.run_forever()
        finally:
            self._is_running = False
        if self._short:
            self.threads.begin(self.threads.expect(), self._short.popleft())

    def answer(self, pending: Pending, body: memoryview, share: Share, on_reply: Callable[[Reply], None]) -> None:
        """Answer a request in one of the threads; `on_reply` is called in the thread of the loop."""

        def run() -> None:
            self._replies.append(partial(on_reply, pending.answer(body, share)))
            if self._is_running:
                with suppress(RuntimeError):  # the loop has ended
                    self.loop.call_soon_threadsafe(self._deliver)

        self.under_way += 1
        if self.threads.at_work is not None and len(body) <= SHORT_BYTES:
            self._short.append(run)
            self.loop.stop()
        else:
            self.threads.begin(self.threads.expect(), run, is_short=False)

    def _deliver(self) -> None:
        while self._replies:
            self.under_way -= 1
            self._replies.popleft()()


class HttpServerConnection(asyncio.Protocol):
    """A connection, with or without TLS. Its methods run in the event loop's thread, except `break_off`.

    `deadline_s` is a time of `time.monotonic()`, after which `expire` must be called soon. A request goes through these
    states: its head is judged, it waits for its body (`_pending`), it is answered in a thread (`_is_working`), and the
    answer is sent (`_is_replied`). It has a `_share` of the memory from its head until the answer has been taken.
    """

    def __init__(self, listening: HttpListening) -> None:
        self._listening = listening
        self._scanner = RequestScanner(listening.max_message_bytes)
        self._transport: asyncio.Transport | None = None
        self._disconnect = Disconnect()
        self._share: Share | None = None
        self._pending: Pending | None = None
        self._body: memoryview | bytearray = _NO_BODY
        """Only until it is answered: a kept connection would hold it uncounted."""
        self._body_bytes = 0
        self._is_working = self._is_replied = self._is_kept = False
        self._is_paused = False
        """Whether the client has not yet received everything written."""
        self._is_lingering = False
        """Whether a client that is still sending gets time to read its answer."""
        self._discarded_bytes = 0
        self._has_ended = False
        self._opened_s = self.used_s = time.monotonic()
        self.deadline_s = self.used_s + KEPT_S
        self._body_until_s = math.inf

    @property
    def is_waited_for(self) -> bool:
        """Whether the client must send next."""
        return not self._scanner.is_whole and self._transport is not None and not self._transport.is_closing()

    @property
    def is_unread(self) -> bool:
        """Whether the client still has to take an answer."""
        return self._is_replied and self._is_paused

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request has come."""
        return self._scanner.head is None and self._scanner.refusal is None and self._scanner.kept_bytes == 0

    @property
    def socket(self) -> Any:
        """The connection's socket."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected, and the TLS handshake is done."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)  # paused until all that was written has been taken
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._certificate = certificate_name(transport.get_extra_info("peercert"))
        peer = transport.get_extra_info("peername")
        where = f"{peer[0]}:{peer[1]}" if peer else "unix"
        self._client = self._certificate or where
        self._address = client_key(where)
        self._listening.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        """The client has left, or the connection was closed."""
        self._transport = self._pending = None
        self._listening.connections.discard(self)
        self._disconnect.leave()
        if not self._is_working:
            self._give_back()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self.used_s = time.monotonic()
        if self._scanner.refusal is not None or self._is_lingering:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _LINGER_BYTES:
                self.abort()
            return
        self._scan(data)
        if self._scanner.is_whole and self._scanner.kept_bytes > _READ_AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()  # until this request is answered

    def eof_received(self) -> bool:
        """The client has half-closed; returns whether the connection stays open for the answer."""
        self._has_ended = True
        self._disconnect.leave()
        if self._is_lingering:
            self.close()
        elif self.is_idle:
            return False
        elif not self._scanner.is_whole and self._scanner.refusal is None:
            self._refuse(_ends_early())
        return not self._is_tls

    def pause_writing(self) -> None:
        """The client does not take all that was written yet."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The client has taken everything."""
        was_paused, self._is_paused = self._is_paused, False  # TLS also resumes what it has not paused
        if was_paused and self._is_replied:
            self._sent()

    def expire(self) -> None:
        """The deadline has passed."""
        if self._is_paused:
            self.abort()
        elif self._is_lingering or self.is_idle:
            self.close()
        elif self._scanner.refusal is None:
            self._refuse(Rejected(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time"))

    def close(self) -> None:
        """Close once everything written has been taken."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def break_off(self) -> None:
        """Abort the connection, from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._listening.loop.call_soon_threadsafe(self.abort if self._is_paused else self.close)

    def _scan(self, data: bytes) -> None:
        scanner = self._scanner
        was_idle, had_head = self.is_idle, scanner.head is not None
        pieces = scanner.scan(data)
        head = scanner.head
        if scanner.is_whole:
            self.deadline_s = math.inf
        elif head is None:
            if was_idle:
                self.deadline_s = self.used_s + HEADERS_S
        else:
            if not had_head:
                self._body_until_s = self.used_s + IDLE_S
            self._body_until_s += sum(map(len, pieces)) / SLOWEST_BYTES_PER_S
            self.deadline_s = min(self._body_until_s, self.used_s + IDLE_S)
        if head is not None:
            if not had_head:
                self._begin(head)
            if self._pending is not None:
                self._receive(self._pending, head.body_bytes or 0, pieces)
        if scanner.refusal is not None:
            self._refuse(scanner.refusal)

    def _refuse(self, refusal: Rejected) -> None:
        """Read no more; the refusal is the reply, unless there is another already."""
        self._scanner.refusal = refusal
        if not self._is_working and not self._is_replied:
            self.deadline_s = math.inf
            self._send(error_reply(refusal) if self._scanner.head is None else failure_reply(refusal))

    def _begin(self, head: RequestHead) -> None:
        """Handle the head of a request."""
        application = self._listening.application
        self._share = Share(application.memory, self._address, self.break_off)
        asked = HttpRequest(
            head.method, head.target, head.headers, self._client, self._certificate, self._disconnect, self.used_s
        )
        started = application.begin(asked)
        if isinstance(started, Reply):
            self._send(started)
        elif not started.takes_body:
            self._answer(started, _NO_BODY)
        elif head.body_bytes is None:
            self._pending, self._body = started, bytearray()
        else:
            try:
                check_size(head.body_bytes, self._listening.max_message_bytes)
                self._share.expect(head.body_bytes)
            except UpwellError as error:
                self._send(failure_reply(error))
            else:
                self._pending = started
        if self._pending is not None and head.expects_continue and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _receive(self, pending: Pending, size_bytes: int, pieces: list[memoryview]) -> None:
        """Take the body's bytes so far; `size_bytes` in all, unless it comes in chunks."""
        assert self._share is not None  # noqa: S101 (it lasts as long as the request)
        try:
            for piece in pieces:
                self._share.take(len(piece))
                if isinstance(self._body, bytearray):  # it comes in chunks
                    self._body += piece
                elif len(piece) == size_bytes:
                    self._body = piece
                else:
                    if self._body_bytes == 0:
                        self._body = np.empty(size_bytes, np.uint8).data  # pages are allocated only when written to
                    self._body[self._body_bytes : self._body_bytes + len(piece)] = piece
                    self._body_bytes += len(piece)
        except UpwellError as error:
            self._send(failure_reply(error))
            return
        if self._scanner.is_whole:
            self._share.has_come()
            self._answer(pending, memoryview(self._body))

    def _answer(self, pending: Pending, body: memoryview) -> None:
        assert self._share is not None  # noqa: S101  as above
        self._pending, self._body = None, _NO_BODY
        self._is_working = True
        self._listening.answer(pending, body, self._share, self._answered)

    def _answered(self, reply: Reply) -> None:
        self._is_working = False
        try:
            self._send(reply)
        except BaseException:
            self.abort()
            raise

    def _send(self, reply: Reply) -> None:
        """Write the answer; `_sent` follows when the client has taken it."""
        head, listening = self._scanner.head, self._listening
        self._pending, self._body = None, _NO_BODY
        if self._transport is None:
            self._give_back()
            return
        is_young = time.monotonic() - self._opened_s < listening.connection_age_s
        may_stay = is_young and not listening.is_ending
        self._is_kept = head is not None and head.is_kept and self._scanner.is_whole and may_stay
        pieces = (
            _head(reply, head, self._is_kept),
            *(() if head is not None and head.method == "HEAD" else reply.body),
        )
        if sum(map(len, pieces)) <= _SMALL_BYTES:
            pieces = (b"".join(pieces),)  # one packet rather than two
        for piece in pieces:
            self._transport.write(piece)
        self._is_replied = True
        if self._is_paused:
            self.deadline_s = time.monotonic() + WRITE_S
            if self._share is not None:
                self._share.waits(self._transport.get_write_buffer_size())
        else:
            self._sent()

    def _sent(self) -> None:
        """The client has taken the answer."""
        self._give_back()
        if self._is_kept and self._scanner.kept_bytes:
            self._listening.loop.call_soon(self._go_on)  # not directly, since there may be thousands
        elif self._is_kept:
            self._go_on()
        elif self._scanner.is_whole or self._has_ended:
            self.close()
        else:
            self._linger()

    def _give_back(self) -> None:
        if self._share is not None:
            self._share.give_back()
            self._share = None

    def _go_on(self) -> None:
        """Continue with the next request."""
        if self._transport is None:
            return
        self._scanner.next_request()
        self._is_replied = False
        self._body_bytes = 0
        self._disconnect = Disconnect()
        self.used_s = time.monotonic()
        if self._has_ended:
            self._disconnect.leave()
        if self._scanner.kept_bytes:
            self.deadline_s = self.used_s + HEADERS_S
            self._scan(b"")
            self._transport.resume_reading()
            if self._has_ended and not self._scanner.is_whole and self._scanner.refusal is None:
                self._refuse(_ends_early())
        elif self._has_ended or self._listening.is_ending:
            self.close()
        else:
            self.deadline_s = self.used_s + KEPT_S

    def _linger(self) -> None:
        """Let a client that is still sending read its answer: closing with unread bytes would discard it."""
        if self._transport is None:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._is_lingering = True
        self.deadline_s = time.monotonic() + _LINGER_S


def _ends_early() -> Rejected:
    return Rejected(HTTPStatus.BAD_REQUEST, "the request is incomplete")


def _head(reply: Reply, head: RequestHead | None, is_kept: bool) -> bytes:
    lines = [f"HTTP/1.1 {int(reply.status)} {_phrase(reply.status)}", f"Date: {_date(int(time.time()))}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    lines += [f"Content-Length: {reply.size_bytes}", "X-Content-Type-Options: nosniff"]
    if not is_kept:
        lines.append("Connection: close")
    elif head is not None and head.is_old:
        lines.append("Connection: Keep-Alive")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace")


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


def _phrase(status: int) -> str:
    return "Client Closed Request" if status == CLIENT_CLOSED_REQUEST else HTTPStatus(status).phrase
