"""One client's connection: aiohttp serves the requests on it, behind a scanner that refuses what is ambiguous.

What aiohttp leaves open is here: time limits over whole headers and bodies, the memory that a body takes, errors as
JSON in the order of the requests, and answers without copies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import numpy as np
from aiohttp import StreamReader, web

from upwell.shared.errors import UpwellError
from upwell.shared.oip.auth.callers import client_key
from upwell.shared.oip.http.application import Application, Pending, check_size, failure_reply
from upwell.shared.oip.http.framing import MAX_HEAD_BYTES, RequestHead, RequestScanner
from upwell.shared.oip.http.memory import Share
from upwell.shared.oip.http.replies import CLIENT_CLOSED_REQUEST, Rejected, Reply, error_reply
from upwell.shared.oip.http.request import Departure, Incoming
from upwell.shared.oip.http.tls import certificate_name
from upwell.shared.platform.call_threads import CallThreads

HEADERS_S = 10.0
"""For the handshake, and for all headers of a request."""

IDLE_S = 10.0
"""A client that has begun to send, and then sends nothing for so long, has gone or means harm."""

SLOWEST_BYTES_PER_S = 4096
"""What has come of a body buys time for the rest; one that comes more slowly holds memory for nothing."""

WRITE_S = 60.0
"""For the answer."""

KEPT_S = 75.0
"""For the next request: longer than proxies keep their connections by default, so that it is they who close."""

_LINGER_S = 1.0
_LINGER_BYTES = 16 << 20
_SMALL_BYTES = 16 << 10
_READ_AHEAD_BYTES = 256 << 10
_REFUSED = b"GET / HTTP/1.1\r\nHost: refused\r\n\r\n"
"""What aiohttp reads instead of a request that is refused, so that the refusal has its turn among the answers."""

_log = logging.getLogger(__name__)
_aiohttp_log = logging.getLogger(f"{__name__}.aiohttp")
_aiohttp_log.setLevel(logging.CRITICAL)  # what a client can bring about at will is not worth a line


@dataclass
class HttpListening:
    """What the connections of a server share. `connections` are the open ones, `under_way` counts the requests that are
    being answered, whether their clients have left or not.
    """

    application: Application
    threads: CallThreads
    max_message_bytes: int
    connection_age_s: float
    connections: set[HttpServerConnection] = field(default_factory=set)
    under_way: int = 0
    is_ending: bool = False


class _Sent(web.StreamResponse):
    """An answer that has been sent already: what aiohttp needs to go on, or to close the connection."""

    def __init__(self, *, is_kept: bool) -> None:
        super().__init__()
        self._is_kept = is_kept

    @property
    def keep_alive(self) -> bool:
        """Whether another request may come."""
        return self._is_kept

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing."""


_KEPT, _CLOSED = _Sent(is_kept=True), _Sent(is_kept=False)


class HttpServerConnection(asyncio.Protocol):
    """A connection, with or without TLS. Its methods are called in the thread of the event loop, but for `break_off`.

    `deadline_s` is an instant of `time.monotonic()`, after which `expire` is to be called soon.
    """

    def __init__(self, listening: HttpListening) -> None:
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._scanner = RequestScanner(listening.max_message_bytes)
        self._served: web.RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._content: StreamReader | None = None
        self._departure = Departure()
        self._has_paused = False
        self._written: asyncio.Future[None] | None = None
        """Is done when the client has taken what has been written; None where it has."""
        self._emptied: asyncio.Future[None] | None = None
        """Is done when a client in the middle of sending has had the time to read its answer."""
        self._discarded_bytes = 0
        self._has_ended = False
        self._opened_s = self.used_s = time.monotonic()
        self.deadline_s = self.used_s + KEPT_S
        self._body_until_s = math.inf

    @property
    def is_waited_for(self) -> bool:
        """Whether it is the client's turn to send."""
        return not self._scanner.is_whole and self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request has come."""
        return self._scanner.head is None and self._scanner.refusal is None and self._scanner.kept_bytes == 0

    @property
    def socket(self) -> Any:
        """What can be waited for."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected, and shaken hands."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)  # paused until all that is written has been taken
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._certificate = certificate_name(transport.get_extra_info("peercert"))
        peer = transport.get_extra_info("peername")
        where = f"{peer[0]}:{peer[1]}" if peer else "unix"
        self._client = self._certificate or where
        self._address = client_key(where)
        self._listening.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or the connection was closed."""
        self._transport = None
        self._listening.connections.discard(self)
        self._departure.leave()
        if self._served is not None:
            self._served.connection_lost(exc)
        _settle(self._written)
        _settle(self._emptied)

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        self.used_s = time.monotonic()
        if self._scanner.refusal is not None or self._emptied is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _LINGER_BYTES:
                self.abort()
            return
        self._scan(data)
        if self._scanner.is_whole and self._scanner.kept_bytes > _READ_AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()  # until this request is answered

    def eof_received(self) -> bool:
        """The client sends no more; whether the connection stays open for the answer."""
        self._has_ended = True
        self._departure.leave()
        if self._emptied is not None:
            _settle(self._emptied)
        elif self.is_idle:
            return False
        elif not self._scanner.is_whole and self._scanner.refusal is None:
            self._refuse(_ends_early())
        return not self._is_tls

    def pause_writing(self) -> None:
        """The client does not take at once what was written."""
        self._written = self._loop.create_future()
        if self._served is not None:
            self._served.pause_writing()
            self._has_paused = True

    def resume_writing(self) -> None:
        """The client has taken it all."""
        _settle(self._written)
        self._written = None
        if self._served is not None and self._has_paused:  # TLS resumes what it has not paused, too
            self._has_paused = False
            self._served.resume_writing()

    def expire(self) -> None:
        """The time is up."""
        if self._written is not None:
            self.abort()
        elif self._emptied is not None:
            _settle(self._emptied)
        elif self.is_idle:
            self.close()
        elif self._scanner.refusal is None:
            self._refuse(Rejected(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time"))

    def close(self) -> None:
        """Close, when what has been written is taken."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def break_off(self) -> None:
        """Give the client up, from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.close if self._written is None else self.abort)

    def _scan(self, data: bytes) -> None:
        scanner = self._scanner
        was_idle, had_head = self.is_idle, scanner.head is not None
        good = scanner.scan(data)
        if good:
            self._serve(good)
        if scanner.refusal is not None:
            self._refuse(scanner.refusal)
        elif scanner.is_whole:
            self.deadline_s = math.inf
        elif scanner.head is None:
            if was_idle:
                self.deadline_s = self.used_s + HEADERS_S
        else:
            if not had_head:
                self._body_until_s = self.used_s + IDLE_S
            self._body_until_s += len(good) / SLOWEST_BYTES_PER_S
            self.deadline_s = min(self._body_until_s, self.used_s + IDLE_S)

    def _serve(self, data: bytes) -> None:
        """Let aiohttp have it. Its side is made with the first request: silent clients take no memory for it."""
        if self._served is None:
            server = web.Server(
                self._answer,
                access_log=None,
                logger=_aiohttp_log,
                auto_decompress=False,
                lingering_time=0.0,
                read_bufsize=_READ_AHEAD_BYTES,
                max_line_size=MAX_HEAD_BYTES,
                max_field_size=MAX_HEAD_BYTES,
            )
            self._served = server()
            assert self._transport is not None  # noqa: S101  it has been connected
            self._served.connection_made(self._transport)
        self._served.data_received(data)

    def _refuse(self, refusal: Rejected) -> None:
        """Read no more; the refusal is the answer, when it has its turn."""
        self._scanner.refusal = refusal
        self.deadline_s = math.inf
        if self._scanner.head is None:
            self._serve(_REFUSED)
        elif self._content is not None:
            self._content.set_exception(refusal)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """aiohttp's handler: answer one request."""
        try:
            is_kept = await self._answered(self._scanner.head, request.content)
        except Exception:  # noqa: BLE001 (the last resort: aiohttp would answer as it sees fit)
            self.abort()
            if self._transport is not None:
                _log.exception("a connection was given up")
            raise ConnectionResetError("the connection was given up") from None
        if is_kept:
            self._go_on()
        elif not self._scanner.is_whole and not self._has_ended:
            await self._linger()
        return _KEPT if is_kept else _CLOSED

    async def _answered(self, head: RequestHead | None, content: StreamReader) -> bool:
        """Answer the request; whether another one may come."""
        application = self._listening.application
        with application.memory.share(self._address, self.break_off) as share:
            if head is None:
                refusal = self._scanner.refusal
                assert refusal is not None  # noqa: S101  or there would be a head
                return await self._send(error_reply(refusal), share)
            begun = application.begin(
                Incoming(
                    head.method,
                    head.target,
                    head.headers,
                    self._client,
                    self._certificate,
                    self._departure,
                    self.used_s,
                )
            )
            if isinstance(begun, Pending):
                try:
                    body = await self._body(head, content, share) if begun.takes_body else memoryview(b"")
                except UpwellError as error:
                    begun = failure_reply(error)
                else:
                    begun = await self._in_thread(begun.answer, body, share)
            return await self._send(begun, share)

    async def _body(self, head: RequestHead, content: StreamReader, share: Share) -> memoryview:
        """The whole body, whose memory is taken of `share` as it comes.

        Raises `UpwellError` for what is to be answered, and others where the client has left.
        """
        size_bytes = head.body_bytes
        if size_bytes is not None:
            check_size(size_bytes, self._listening.max_message_bytes)
            share.expect(size_bytes)
        if self._scanner.refusal is not None:
            raise self._scanner.refusal
        if head.expects_continue and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._content = content
        try:
            if size_bytes is None:
                chunked = bytearray()
                while piece := await content.readany():
                    share.take(len(piece))
                    chunked += piece
                whole = memoryview(chunked)
            else:
                whole, done = np.empty(size_bytes, np.uint8).data, 0  # the kernel gives no page before it is written to
                while done < size_bytes:
                    piece = await content.readany()
                    share.take(len(piece))
                    whole[done : done + len(piece)] = piece
                    done += len(piece)
        finally:
            self._content = None
        share.has_come()
        return whole

    async def _in_thread(self, answer: Callable[[memoryview, Share], Reply], body: memoryview, share: Share) -> Reply:
        replied: asyncio.Future[Reply] = self._loop.create_future()

        def run() -> None:
            reply = answer(body, share)
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(tell, reply)

        def tell(reply: Reply) -> None:
            self._listening.under_way -= 1
            _settle(replied, reply)

        self._listening.under_way += 1
        self._listening.threads.submit(run)
        return await replied

    async def _send(self, reply: Reply, share: Share) -> bool:
        """Send the answer, until the client has taken it; whether another request may come."""
        head, listening = self._scanner.head, self._listening
        is_young = time.monotonic() - self._opened_s < listening.connection_age_s
        is_kept = head is not None and head.is_kept and self._scanner.is_whole and is_young and not listening.is_ending
        pieces = (_head(reply, head, is_kept), *(() if head is not None and head.method == "HEAD" else reply.body))
        if sum(map(len, pieces)) <= _SMALL_BYTES:
            pieces = (b"".join(pieces),)  # one packet rather than two
        if self._transport is None:
            return False
        for piece in pieces:
            self._transport.write(piece)
        if self._written is not None:
            self.deadline_s = time.monotonic() + WRITE_S
            share.waits(self._transport.get_write_buffer_size())
            await self._written
            self.deadline_s = math.inf
        return is_kept

    def _go_on(self) -> None:
        """With the next request."""
        if self._transport is None:
            return
        self._scanner.next_request()
        self._departure = Departure()
        self.used_s = time.monotonic()
        if self._has_ended:
            self._departure.leave()
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

    async def _linger(self) -> None:
        """Let a client in the middle of sending read its answer: bytes left unread would take it back."""
        if self._transport is None:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._emptied = self._loop.create_future()
        self.deadline_s = time.monotonic() + _LINGER_S
        await self._emptied


def _settle(future: asyncio.Future[Any] | None, result: Reply | None = None) -> None:
    if future is not None and not future.done():
        future.set_result(result)


def _ends_early() -> Rejected:
    return Rejected(HTTPStatus.BAD_REQUEST, "the request ends before it is whole")


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
