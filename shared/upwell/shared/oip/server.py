"""Start a synchronous gRPC server for a `Dataplane`, on TCP and unix sockets."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

import grpc

from upwell.shared.errors import ConfigError
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.oip.security import Address, ServerSecurity, check_exposure, parse_address
from upwell.shared.oip.servicer import add_oip_service
from upwell.shared.oip.tls import server_credentials
from upwell.shared.oip.tokens import TokenInterceptor

DEFAULT_MAX_MESSAGE_BYTES = 64 << 20
"""gRPC's own default of 4 MiB refuses an ordinary batch of pictures."""

LOOPBACK_ONLY = ServerSecurity()
"""No protection, so no address that another machine can reach."""

_MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class RunningServer:
    """A server that accepts calls. `addresses` has the real ports where 0 was asked for."""

    addresses: tuple[str, ...]
    _server: grpc.Server
    _executor: futures.ThreadPoolExecutor

    def stop(self, grace_s: float) -> None:
        """Accept no more calls, let those under way end within `grace_s`, cancel the rest, and return then."""
        self._server.stop(grace_s).wait()
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
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    security: ServerSecurity = LOOPBACK_ONLY,
    extra: Sequence[Callable[[grpc.Server], None]] = (),
) -> RunningServer:
    """Serve `dataplane` on every address of `listen`: `HOST:PORT` (port 0: any free one) or `unix:PATH`.

    `max_workers` calls run at once, each on a thread of its own; a further one is refused at once with
    RESOURCE_EXHAUSTED, so that no queue hides in the thread pool. Give a few more than the dataplane lets in, so
    that its own refusals and health checks get through. `extra` adds further services before the start.

    Raises `ConfigError` for an address that is unprotected, malformed, in use or not writable, and for broken
    TLS or token files; nothing listens then.
    """
    addresses = [parse_address(text) for text in listen]
    if not addresses or len(set(addresses)) < len(addresses):
        raise ConfigError.at(None, "expected one or more different addresses to listen on, each HOST:PORT or unix:PATH")
    check_exposure(listen, security)
    for address in addresses:
        check_free(address)
    credentials = server_credentials(security.tls) if security.tls else None
    interceptors: list[grpc.ServerInterceptor] = [TokenInterceptor(security.tokens)] if security.tokens else []
    executor = futures.ThreadPoolExecutor(max_workers, thread_name_prefix="oip")
    server = grpc.server(
        executor,
        interceptors=interceptors,
        options=_options(max_message_bytes),
        maximum_concurrent_rpcs=max_workers,
    )
    add_oip_service(server, dataplane)
    for add_service in extra:
        add_service(server)
    bound = tuple(_listen(server, address, credentials) for address in addresses)
    server.start()
    return RunningServer(bound, server, executor)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # With it a second server on the same port would silently take half of the connections.
        ("grpc.so_reuseport", 0),
        # Agents ping idle links to find half-open ones; gRPC's default takes that for an attack.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Devices vanish without a goodbye; find out within minutes rather than hours.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def _listen(server: grpc.Server, address: Address, credentials: grpc.ServerCredentials | None) -> str:
    """Bind the server to one address and return it with its real port. Raises `ConfigError`."""
    try:
        if credentials is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), credentials)
    except RuntimeError:
        raise ConfigError.at(None, f"cannot listen on {address}") from None
    return str(address if address.socket_path is not None else Address(address.host, port))


def check_free(address: Address) -> None:
    """Try the address before gRPC does, which says only that it failed, not why. Raises `ConfigError`."""
    try:
        if address.socket_path is None:
            _try_port(address.host, address.port)
        else:
            _try_socket(address.socket_path)
    except OSError as error:
        reason = "it is in use by another program" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError.at(None, f"cannot listen on {address}: {reason}") from None


def _try_port(host: str, port: int) -> None:
    where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(*where[:3]) as probe:
        if os.name == "posix":
            # As gRPC does: a port whose last connections are still timing out is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where[4])


def _try_socket(path: Path) -> None:
    """Make way for a socket at `path`. One that nobody listens on is removed; gRPC would remove any."""
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"the path is longer than {_MAX_SOCKET_PATH_BYTES} bytes")
    if path.exists() and not path.is_socket():
        raise OSError(errno.ENOTSOCK, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(path))
    path.unlink()
