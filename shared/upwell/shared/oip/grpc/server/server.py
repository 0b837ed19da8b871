"""A synchronous gRPC server for a `Dataplane`, on TCP and unix sockets."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import grpc

from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.config.security import ServerSecurity, check_listen
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.bearer_tokens import TokenInterceptor, known_tokens
from upwell.shared.oip.auth.caller import Permits
from upwell.shared.oip.auth.tls_credentials import server_credentials
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.grpc.server.open_streams import DEFAULT_LIMITS, Streams
from upwell.shared.oip.grpc.server.servicer import add_methods, methods_of
from upwell.shared.oip.grpc.server.slow_clients import PendingCalls, Registrar, UnreadAnswers, most_unread_bytes
from upwell.shared.platform.call_threads import CallThreads
from upwell.shared.platform.process import allow_many_files

_LOOPBACK_ONLY = ServerSecurity()
_MAX_SOCKET_PATH_BYTES = 107
_LEAST_CALLS_PER_CONNECTION = 1024
_AFTER_CANCEL_S = 2.0
"""Request streams are read as bytes, because gRPC never ends a stream whose message a generated handler cannot read."""


@dataclass(frozen=True)
class Connections:
    """How a server accepts connections, what they may carry, and how long they live.

    `security`: without it, only loopback addresses are allowed. Messages larger than `max_message_bytes` are refused
    before they are read. `shares_ports`: other processes of the same user listen on the same TCP ports (SO_REUSEPORT),
    and each connection goes to one of them. `age_s`: after about so long (±10 %) the client is told to reconnect, while
    requests in progress are answered; after another `grace_s` they are cut off. None: no limit. `origins`: the sites
    whose pages may call over HTTP from a browser, besides the server's own.
    """

    security: ServerSecurity = _LOOPBACK_ONLY
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    shares_ports: bool = False
    age_s: float | None = None
    grace_s: float = 30.0
    origins: tuple[str, ...] = ()


LOCAL = Connections()
"""On loopback, without protection, with its own ports and without a limit on age."""


@dataclass(frozen=True)
class RunningServer:
    """A server that accepts calls. `addresses` has real ports instead of 0."""

    addresses: tuple[str, ...]
    _server: grpc.Server
    _executor: CallThreads
    _streams: Streams
    _unread: UnreadAnswers

    def wait_read(self, limit_s: float) -> None:
        """Wait until the clients have read all large answers, or the time is up."""
        self._unread.wait_read(limit_s)

    def stop(self, grace_s: float, closed: Callable[[], None] = lambda: None) -> None:
        """Accept no more calls, let those in progress end within `grace_s`, cancel the rest, then return.

        `closed` is called once no more calls are accepted.
        """
        self._streams.end()
        ended = self._server.stop(grace_s)
        closed()
        ended.wait(grace_s + _AFTER_CANCEL_S)
        self._executor.shutdown(wait=False)
        for address in self.addresses:
            path = parse_address(address).socket_path
            if path is not None:
                path.unlink(missing_ok=True)


def start_server(
    dataplane: Dataplane,
    listen: Sequence[str],
    *,
    max_workers: int,
    at_work: int | None = None,
    connections: Connections = LOCAL,
    extra: Sequence[Callable[[grpc.Server], None]] = (),
) -> RunningServer:
    """Serve `dataplane` on every address of `listen`: `HOST:PORT` (port 0: any free one) or `unix:PATH`.

    `max_workers` calls run at once, each on its own thread; a further one is refused at once with RESOURCE_EXHAUSTED,
    so that no queue hides in the thread pool. Allow a few more than the dataplane admits, so that its own refusals and
    health checks get through. `at_work`: see `CallThreads`; for a dataplane that says where it waits (`yield_permit`).
    `extra` adds further services before the start.

    Raises `ConfigError` for an address that is unprotected, malformed, in use or not writable, and for broken TLS or
    token files; nothing listens then.
    """
    security = connections.security
    addresses = check_listen(listen, security)
    allow_many_files()
    for address in addresses:
        if address.socket_path is not None or not connections.shares_ports:
            check_free(address)
    # One per port, since they remember which files are in force there.
    credentials = [server_credentials(security.tls) if security.tls else None for _ in addresses]
    tokens = known_tokens(security)
    interceptors: list[grpc.ServerInterceptor] = [TokenInterceptor(tokens)] if tokens else []
    executor = CallThreads(max_workers + DEFAULT_LIMITS.threads, "oip", at_work)
    server = grpc.server(
        executor,
        interceptors=interceptors,
        options=_options(connections, max_workers),
        maximum_concurrent_rpcs=max_workers,
    )
    # It registers services as the server does, which has more methods.
    unread = UnreadAnswers(most_unread_bytes(connections.max_message_bytes))
    registrar = cast(grpc.Server, Registrar(server, PendingCalls(executor, max_workers, unread)))
    permitted = Permits(dataplane) if tokens else dataplane
    limits = replace(DEFAULT_LIMITS, answer_bytes=connections.max_message_bytes)
    streams = Streams(permitted, executor, unread, limits)
    add_methods(registrar, methods_of(permitted, connections.max_message_bytes))
    streams.add_to(registrar)
    for add_service in extra:
        add_service(registrar)
    bound = tuple(_listen(server, address, own) for address, own in zip(addresses, credentials, strict=True))
    server.start()
    return RunningServer(bound, server, executor, streams, unread)


def _options(connections: Connections, max_workers: int) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", connections.max_message_bytes),
        ("grpc.max_send_message_length", connections.max_message_bytes),
        # By default there is no limit, and a call whose small answer is not read takes 19 kB. Twice the calls at once,
        # so that surplus ones are refused at once rather than wait in a client that keeps to this limit.
        ("grpc.max_concurrent_streams", max(_LEAST_CALLS_PER_CONNECTION, 2 * max_workers)),
        # Agents ping idle links to find half-open ones; gRPC takes that for an attack by default.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Devices vanish without closing connections; notice within minutes rather than hours.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # By default, a second server on the same port would silently take half of the connections.
        ("grpc.so_reuseport", int(connections.shares_ports)),
    ]
    if connections.age_s is not None:
        options += [
            ("grpc.max_connection_age_ms", round(1e3 * connections.age_s)),
            ("grpc.max_connection_age_grace_ms", round(1e3 * connections.grace_s)),
        ]
    return options


def _listen(server: grpc.Server, address: Address, credentials: grpc.ServerCredentials | None) -> str:
    """Bind the server to one address; returns it with its real port. Raises `ConfigError`."""
    try:
        if credentials is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), credentials)
    except RuntimeError:
        raise ConfigError.at(None, f"cannot listen on {address}") from None
    return str(address if address.socket_path is not None else Address(address.host, port))


def check_free(address: Address, key: str = "") -> None:
    """Try to bind the address of the configuration's `key` before gRPC does, which would not say why it failed.

    Raises `ConfigError`.
    """
    try:
        if address.socket_path is None:
            _try_port(address.host, address.port)
        else:
            _try_socket(address.socket_path)
    except OSError as error:
        reason = "it is in use by another program" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError.at(None, f"cannot listen on {address}: {reason}", key) from None


def _try_port(host: str, port: int) -> None:
    where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(*where[:3]) as probe:
        if os.name == "posix":
            # As gRPC does: a port with old connections in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where[4])


def _try_socket(path: Path) -> None:
    """Make room for a socket at `path`. Only a socket without a listener is removed; gRPC would remove any."""
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"the path is longer than {_MAX_SOCKET_PATH_BYTES} bytes")
    if path.exists() and not path.is_socket():
        raise OSError(errno.ENOTSOCK, "a file that is not a socket is in the way")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(path))
    path.unlink()
