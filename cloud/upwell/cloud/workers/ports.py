"""TCP ports that several processes are to share: taken once, so that they stay ours whichever worker lives."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from upwell.shared.config.security import Address, parse_address
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.server import check_free


@dataclass(frozen=True)
class Reserved:
    """Addresses with their real ports, and the sockets that hold them; those are bound and never listen."""

    addresses: tuple[str, ...]
    sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        """Let the ports go."""
        for one in self.sockets:
            one.close()


def reserve(listen: Sequence[str]) -> Reserved:
    """Take every address of `listen` (port 0: any free one), for processes of this user to listen on.

    Linux gives each new connection to one of the sockets that listen on a port with SO_REUSEPORT, by a hash of both
    ends, and lets only processes of one user share it so. Raises `ConfigError`: an address is in use by another
    program, is a unix socket (which cannot be shared like that), or this is not Linux.
    """
    if sys.platform != "linux":
        raise ConfigError.at(None, "only Linux lets several workers share a port; write `workers: 1`")
    sockets: list[socket.socket] = []
    addresses: list[str] = []
    try:
        for text in listen:
            address = parse_address(text)
            if address.socket_path is not None:
                raise ConfigError.at(
                    None, f"several workers cannot share {text}; listen on HOST:PORT, or write `workers: 1`"
                )
            check_free(address)
            sockets.append(_bound(address))
            addresses.append(str(Address(address.host, sockets[-1].getsockname()[1])))
    except BaseException:  # whatever it is, the ports that were taken are let go
        Reserved((), tuple(sockets)).close()
        raise
    return Reserved(tuple(addresses), tuple(sockets))


def _bound(address: Address) -> socket.socket:
    where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    holder = socket.socket(*where[:3])
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holder.bind(where[4])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # Connections of a service that did not share are still timing out. With this the port is ours beside them,
            # but until the workers listen another program could take it in the same way: so only if need be.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(where[4])
    except OSError as error:
        holder.close()
        raise ConfigError.at(None, f"cannot listen on {address}: {error.strerror or error}") from None
    return holder
