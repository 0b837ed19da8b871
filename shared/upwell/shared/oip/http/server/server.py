"""Starts an HTTP server for a `Dataplane`, on TCP and unix sockets."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from upwell.shared.config.security import Address, check_listen, parse_address
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.bearer_tokens import known_tokens
from upwell.shared.oip.auth.model_permits import Permits
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.grpc.server.server import LOCAL, Connections, check_free
from upwell.shared.oip.http.server.connection import HttpListening
from upwell.shared.oip.http.server.extension_routes import Extensions
from upwell.shared.oip.http.server.listener import Listener
from upwell.shared.oip.http.server.routes import Application
from upwell.shared.oip.http.tls_contexts import watch_server_context
from upwell.shared.platform.call_threads import CallThreads

READERS = 32
"""Threads beyond those for inference: they parse JSON, answer probes and refuse requests."""


@dataclass(frozen=True)
class RunningHttpServer:
    """A server that accepts requests. `addresses` has real ports instead of 0."""

    addresses: tuple[str, ...]
    _listener: Listener

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
