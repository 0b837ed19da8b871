"""Endpoints and their connections, and the device's own address on the way to each.

The device may move to another network: its own address has changed.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from upwell.edge.uplink.connection_keepalive import RoundTrips, channel_options
from upwell.shared.config.addresses import parse_endpoint
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.open_client import Client, open_client
from upwell.shared.platform.socket_connect import bind_to_interface

WARM_UP_S = 10.0
"""Maximum time to open a new connection ahead; after that the next call opens it."""


class Connection:
    """One client and its channel (over HTTP its connections), closed once it is retired and no longer used."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.client = client
        self.timeout_s = timeout_s
        self.users = 0
        self.retired = False
        self.answered_at_s: float | None = None
        self.late = 0
        """Calls in a row without an answer in time."""

    @property
    def answered(self) -> bool:
        """Whether anything was ever received over it."""
        return self.answered_at_s is not None


class Endpoint:
    """An endpoint with its current connection, and a second one for calls that must not share the first.

    Connections use the network interface `interface`, if one is named. Thread-safe. The constructor raises
    `ConfigError` for an invalid endpoint or files.
    """

    def __init__(self, endpoint: str, security: ClientSecurity, max_message_bytes: int, interface: str = "") -> None:
        self.address = endpoint
        self._interface = interface
        self._security = security
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._doomed: list[Connection] = []
        self._leaving: list[Connection] = []
        self.round_trips = RoundTrips()
        self._links: list[Connection | None] = [self._new_link(self.round_trips.timeout_s()), None]

    def take(self, apart_from: Connection | None = None, *, size_bytes: int = 0, within_s: float = 0.0) -> Connection:
        """A connection to use until `give_back`, different from `apart_from`, for a call with a message of `size_bytes`
        that ends by itself after `within_s`.

        A connection made for faster answers than are now observed is replaced: it would take slowness for death. So is
        one that may take the sending of this message for death, if the call would not end before that.
        Raises `ConfigError` if files have become invalid, and `RemoteError` once the endpoint is closed.
        """
        with self._exclusively():
            if self._closed:
                raise RemoteError(RemoteErrorKind.CANCELLED, "the uplink is closed")
            place = 1 if apart_from is not None and self._links[0] is apart_from else 0
            link = self._links[place]
            timeout_s = self.round_trips.timeout_s(size_bytes, within_s)
            if link is not None and link.timeout_s < timeout_s:
                self._retire(link)
                link = None
            if link is None:
                self._links[place] = link = self._new_link(timeout_s)
            link.users += 1
            return link

    def give_back(self, link: Connection) -> None:
        """Return a connection after use."""
        with self._exclusively():
            link.users -= 1
            self._close_unused(link)

    def retire(self, link: Connection, *, at_once: bool = False) -> None:
        """Open a new connection for the next call; calls in progress on this one finish normally.

        `at_once`: before that call, which on a slow link would lose its deadline to the handshakes.
        """
        with self._exclusively():
            was_in_use = self._links[0] is link and not self._closed
            self._retire(link)
            if not (at_once and was_in_use):
                return
            try:
                self._links[0] = fresh = self._new_link(self.round_trips.timeout_s())
            except ConfigError:  # invalid files: reported by the next call
                return
        with suppress(ConfigError, RemoteError):
            fresh.client.warm_up(WARM_UP_S, lambda answered: self._warmed(fresh, answered))

    def _warmed(self, link: Connection, answered: bool) -> None:
        """Record that a new connection is ready. One that failed to open is dropped: gRPC would be slow to retry."""
        with self._exclusively():
            if answered:
                link.answered_at_s = time.monotonic()
            elif not link.answered:
                self._retire(link)

    def renew(self) -> None:
        """Retire every connection."""
        with self._exclusively():
            for link in self._links:
                if link is not None:
                    self._retire(link)

    def answered(self, link: Connection, network_s: float, size_bytes: int = 0) -> None:
        """Learn from an answer to so many bytes that spent `network_s` outside the server; handshakes in it only
        lengthen the timeout.
        """
        with self._exclusively():
            link.answered_at_s, link.late = time.monotonic(), 0
            self.round_trips = self.round_trips.answered(network_s, size_bytes)

    def broke(self, link: Connection) -> None:
        """Lengthen the timeout: this connection was taken for dead."""
        with self._exclusively():
            self.round_trips = self.round_trips.broke(link.timeout_s)

    def close(self) -> None:
        """Cancel calls in progress and close every connection."""
        with self._exclusively():
            self._closed = True
            links, self._links = [*self._links, *self._leaving], [None, None]
        for link in links:
            if link is not None:
                link.client.close()

    def _new_link(self, timeout_s: float) -> Connection:
        client = open_client(
            self.address,
            self._security,
            max_message_bytes=self._max_message_bytes,
            silence_s=timeout_s,
            options=channel_options(timeout_s),
            interface=self._interface,
        )
        return Connection(client, timeout_s)

    def _retire(self, link: Connection) -> None:
        link.retired = True
        self._links = [None if one is link else one for one in self._links]
        if link.users and link not in self._leaving:
            self._leaving.append(link)  # calls in progress finish, at the latest with the endpoint
        self._close_unused(link)

    def _close_unused(self, link: Connection) -> None:
        if link.retired and link.users == 0:
            self._leaving = [one for one in self._leaving if one is not link]
            self._doomed.append(link)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the lock. Unused connections are closed after it, since that may call back into this object."""
        doomed: list[Connection] = []
        try:
            with self._lock:
                try:
                    yield
                finally:
                    doomed, self._doomed = self._doomed, doomed
        finally:
            for link in doomed:
                link.client.close()


Sources: TypeAlias = tuple[str, ...]

# Reserved addresses (RFC 5737, RFC 3849): they take the default route.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


def source_addresses(endpoints: Sequence[str], interface: str = "") -> Sources:
    """The device's own addresses towards these endpoints by the current routing table, over `interface` if one is
    named; "" if there is no route.

    Sends nothing and asks no name server: connecting a UDP socket only looks up the route. An endpoint given by name
    counts as a host on the default route; one on this machine is skipped.
    """
    hosts: dict[str, None] = {}
    for endpoint in endpoints:
        address = parse_endpoint(endpoint)
        if address.socket_path is None and not address.is_loopback:
            hosts.update(dict.fromkeys([address.host] if _is_number(address.host) else _SOMEWHERE))
    return tuple(_source(host, interface) for host in hosts)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _source(host: str, interface: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            bind_to_interface(probe, interface)
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
