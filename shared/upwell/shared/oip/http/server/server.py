"""An HTTP server for a `Dataplane`, on TCP and unix sockets: accepts connections, and closes late or surplus ones."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.config.security import check_listen
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.bearer_tokens import known_tokens
from upwell.shared.oip.auth.caller import Permits
from upwell.shared.oip.auth.tls_credentials import watch_server_context
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.grpc.server.server import LOCAL, Connections, check_free
from upwell.shared.oip.http.server.connection import HEADERS_S, HttpListening, HttpServerConnection
from upwell.shared.oip.http.server.extension_routes import Extensions
from upwell.shared.oip.http.server.routes import Application
from upwell.shared.platform.call_threads import CallThreads
from upwell.shared.platform.watched_files import WatchedFiles

MAX_IDLE = 1000
"""Maximum number of connections without a complete request; beyond it, the longest silent ones are closed."""

MAX_CONNECTIONS = 3000
"""Maximum number of connections; beyond it new ones are closed at once."""

_BACKLOG = 128
_LOOK_EVERY_S = 0.25
_TURNS_TO_CLOSE = 4
_AFTER_CANCEL_S = 2.0
_SETTLE_S = 0.005

_log = logging.getLogger(__name__)


class Listener:
    """Accepts connections on `sockets`, in an event loop of its own."""

    def __init__(
        self, sockets: Sequence[socket.socket], listening: HttpListening, tls: WatchedFiles[ssl.SSLContext] | None
    ) -> None:
        self._sockets = sockets
        self._listening = listening
        self._tls = tls
        self._loop = listening.loop
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._is_closed = threading.Event()

    def start(self) -> None:
        """Start accepting. Raises `RuntimeError` if no thread can be started."""
        self._loop.set_exception_handler(_note)
        for one in self._sockets:
            one.setblocking(False)
            one.listen(_BACKLOG)
            self._watch(one)
        self._loop.call_later(_LOOK_EVERY_S, self._look)
        if not self._listening.threads.poll(self._run):
            raise RuntimeError("cannot start a thread for the HTTP server")

    def wait_read(self, limit_s: float) -> None:
        """Wait until the clients have read their answers, or the time is up."""
        self._call(self._until(lambda: not any(one.is_unread for one in self._listening.connections), limit_s))

    def end(self) -> None:
        """Accept no more, close idle connections, and close the others once their requests are answered."""
        self._call(self._end())

    def stop(self, grace_s: float) -> None:
        """End, wait at most `grace_s` for requests in progress, cancel the rest, and return when the threads have
        ended."""
        self._call(self._end())
        if not self._call(self._until(self._is_drained, grace_s)):
            self._listening.application.cancel_all()
            self._call(self._until(self._is_drained, _AFTER_CANCEL_S))
        if self._loop.is_closed():
            return
        none_under_way = self._call(self._close())
        self._loop.call_soon_threadsafe(self._stop)
        self._is_closed.wait()
        self._listening.threads.shutdown(wait=none_under_way)

    def _call(self, asked: Coroutine[Any, Any, bool]) -> bool:
        if self._loop.is_closed():
            asked.close()
            return True
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def _run(self) -> bool:
        """Run the loop until this thread has something else to do. False once the loop has ended."""
        self._listening.run()
        if self._is_over:
            self._loop.close()
            self._is_closed.set()
        return not self._is_over

    def _stop(self) -> None:
        self._is_over = True
        self._loop.stop()

    def _accept(self, listening: socket.socket) -> None:
        """Accept pending connections."""
        try:
            while True:
                self._connect(listening.accept()[0])
        except (BlockingIOError, ConnectionError):
            pass  # no more, or a client that has left again
        except OSError as error:
            _log.error("cannot accept connections: %s", error)
            self._loop.remove_reader(listening)  # usually out of file descriptors: do not spin
            self._loop.call_later(_LOOK_EVERY_S, self._watch, listening)

    def _watch(self, listening: socket.socket) -> None:
        if not self._listening.is_ending:
            self._loop.add_reader(listening, self._accept, listening)

    def _connect(self, accepted: socket.socket) -> None:
        if len(self._listening.connections) + len(self._connecting) >= MAX_CONNECTIONS:
            accepted.close()
            return
        connecting = self._loop.create_task(self._connected(accepted))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    async def _connected(self, accepted: socket.socket) -> None:
        context = self._tls.get() if self._tls is not None else None
        limit_s = None if context is None else HEADERS_S
        try:
            await self._loop.connect_accepted_socket(
                partial(HttpServerConnection, self._listening), accepted, ssl=context, ssl_handshake_timeout=limit_s
            )
        except (
            OSError,
            asyncio.CancelledError,
        ):  # not TLS, or an unknown certificate, of which TLS has informed the client
            accepted.close()
        if len(self._listening.connections) > MAX_IDLE:
            self._make_room()

    def _make_room(self) -> None:
        """If too many connections have no complete request, close the tenth of them that was silent longest."""
        waited_for = [one for one in self._listening.connections if one.is_waited_for]
        if len(waited_for) > MAX_IDLE:
            for one in sorted(waited_for, key=lambda one: one.used_s)[: MAX_IDLE // 10]:
                one.close()

    def _look(self) -> None:
        self._loop.call_later(_LOOK_EVERY_S, self._look)
        now_s = time.monotonic()
        for one in [one for one in self._listening.connections if one.deadline_s < now_s]:
            one.expire()

    async def _end(self) -> bool:
        if self._listening.is_ending:
            return True
        self._listening.is_ending = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            self._accept(listening)  # connections that were made before the end
            listening.close()
        if self._tls is None and self._connecting:
            await asyncio.wait(self._connecting)
        with selectors.DefaultSelector() as selector:
            for one in self._listening.connections:
                if (its_socket := one.socket) is not None:  # else it is closing
                    selector.register(its_socket, selectors.EVENT_READ, one)
            have_sent = {key.data for key, _ in selector.select(0)}
        for one in [*self._listening.connections]:
            if one.is_idle and one not in have_sent:
                one.close()
        return True

    def _is_drained(self) -> bool:
        """Whether all connections and requests have ended."""
        return not (self._connecting or self._listening.connections or self._listening.under_way)

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it is so within that time."""
        until_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() >= until_s:
                return False
            await asyncio.sleep(_SETTLE_S)
        return True

    async def _close(self) -> bool:
        """End all connections; returns whether no request is in progress any more."""
        for one in [*self._listening.connections]:
            one.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._listening.connections:
            await asyncio.sleep(0)
        for _ in range(_TURNS_TO_CLOSE):  # connections that were being made close their sockets in the following turns
            await asyncio.sleep(0)
        return self._listening.under_way == 0


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    level = logging.DEBUG if error is None or isinstance(error, OSError) else logging.ERROR
    _log.log(level, "%s", context["message"], exc_info=error)


READERS = 32
"""Threads beyond those for inference: they parse JSON, answer probes and refuse requests."""


@dataclass(frozen=True)
class RunningHttpServer:
    """A server that accepts requests. `addresses` has real ports instead of 0."""

    addresses: tuple[str, ...]
    _listener: Listener

    def wait_read(self, limit_s: float) -> None:
        """Wait until the clients have read their answers, or the time is up."""
        self._listener.wait_read(limit_s)

    def end(self) -> None:
        """Accept no more, answer what was sent so far, and then close the connections."""
        self._listener.end()

    def stop(self, grace_s: float) -> None:
        """Accept no more, let requests in progress end within `grace_s`, cancel the rest, then return."""
        self._listener.stop(grace_s)
        for address in self.addresses:
            path = parse_address(address).socket_path
            if path is not None:
                path.unlink(missing_ok=True)


def start_http_server(
    dataplane: Dataplane,
    listen: Sequence[str],
    *,
    max_workers: int,
    connections: Connections = LOCAL,
    at_work: int | None = None,
    extensions: Extensions | None = None,
) -> RunningHttpServer:
    """Serve `dataplane` over HTTP/1.1 on every address of `listen`: `HOST:PORT` (port 0: any free one) or `unix:PATH`.

    `max_workers` inferences run at once; a further one is refused at once with 429. A body above the limit of
    `connections` is refused with 413 before it is read. A connection above the age limit of `connections` is closed
    after an answer that says so. `at_work`: see `CallThreads`, as for `start_server`; `extensions` are the routes
    beside inference. Raises `ConfigError` as `start_server` does; nothing listens then.
    """
    security, max_message_bytes = connections.security, connections.max_message_bytes
    addresses = check_listen(listen, security)
    tls = watch_server_context(security.tls) if security.tls else None
    tokens = known_tokens(security)
    if tokens is not None:
        dataplane = Permits(dataplane)
    application = Application(
        dataplane,
        max_workers=max_workers,
        max_message_bytes=max_message_bytes,
        tokens=tokens,
        extensions=extensions,
        origins=connections.origins,
    )
    sockets = _bind_all(addresses, connections.shares_ports)
    age_s = math.inf if connections.age_s is None else connections.age_s
    threads = CallThreads(max_workers + READERS, "http", at_work)
    listener = Listener(sockets, HttpListening(application, threads, max_message_bytes, age_s), tls)
    listener.start()
    bound = tuple(_bound(address, one) for address, one in zip(addresses, sockets, strict=True))
    return RunningHttpServer(bound, listener)


def _bind_all(addresses: Sequence[Address], shares_ports: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            is_shared = shares_ports and address.socket_path is None
            if not is_shared:
                check_free(address)
            sockets.append(_bind(address, is_shared))
    except (ConfigError, OSError) as error:
        for one in sockets:
            one.close()
        if isinstance(error, ConfigError):
            raise
        raise ConfigError.at(None, f"cannot listen on {address}: {error.strerror or error}") from None
    return sockets


def _bind(address: Address, is_shared: bool) -> socket.socket:
    if address.socket_path is not None:
        where: tuple[int, int, int] = (socket.AF_UNIX, socket.SOCK_STREAM, 0)
        name: str | tuple[Any, ...] = str(address.socket_path)
    else:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        where, name = found[:3], found[4]
    listening = socket.socket(*where)
    try:
        if address.socket_path is None:
            # Accepted sockets inherit it: an answer's last packet does not wait for an acknowledgement.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if os.name == "posix":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(name)
    except OSError:
        listening.close()
        raise
    return listening


def _bound(address: Address, listening: socket.socket) -> str:
    return str(address if address.socket_path is not None else Address(address.host, listening.getsockname()[1]))
