"""One endpoint and the connections to it, each thrown away when it misbehaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from upwell.edge.uplink.keepalive import RoundTrips, channel_options
from upwell.shared.errors import ConfigError
from upwell.shared.oip.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.clients import Client, open_client
from upwell.shared.oip.security import ClientSecurity

WARM_UP_S = 10.0
"""How long a new connection may take to be made, beyond which the next call makes it."""


class Link:
    """One client and its channel (over HTTP its connections), closed when it is retired and nobody uses it any more."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.client = client
        self.timeout_s = timeout_s
        self.users = 0
        self.retired = False
        self.answered_at_s: float | None = None
        self.late = 0
        """Calls in a row that got no answer in time."""

    @property
    def answered(self) -> bool:
        """Whether anything ever came back over it."""
        return self.answered_at_s is not None


class Station:
    """An endpoint with the connection in use, and a second one for what must not share the first.

    Safe to use from many threads. The constructor raises `ConfigError` for an endpoint or files that are wrong.
    """

    def __init__(self, endpoint: str, security: ClientSecurity, max_message_bytes: int) -> None:
        self.endpoint = endpoint
        self._security = security
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._doomed: list[Link] = []
        self._leaving: list[Link] = []
        self.round_trips = RoundTrips()
        self._links: list[Link | None] = [self._new_link(), None]

    def take(self, apart_from: Link | None = None) -> Link:
        """A connection to use until `give_back`, another one than `apart_from`.

        One that was made for faster answers than are now seen is replaced: it would take slowness for death.
        Raises `ConfigError` for files that went wrong, and `RemoteError` once the station is closed.
        """
        with self._exclusively():
            if self._closed:
                raise RemoteError(RemoteErrorKind.CANCELLED, "the uplink is closed")
            place = 1 if apart_from is not None and self._links[0] is apart_from else 0
            link = self._links[place]
            if link is not None and link.timeout_s < self.round_trips.timeout_s:
                self._retire(link)
                link = None
            if link is None:
                self._links[place] = link = self._new_link()
            link.users += 1
            return link

    def give_back(self, link: Link) -> None:
        """Done with a connection that was taken."""
        with self._exclusively():
            link.users -= 1
            self._close_unused(link)

    def retire(self, link: Link, *, at_once: bool = False) -> None:
        """Make a new connection for the next call; those under way on this one end in peace.

        `at_once`: before that call, since on a slow link the handshakes would cost it its deadline.
        """
        with self._exclusively():
            was_in_use = self._links[0] is link and not self._closed
            self._retire(link)
            if not (at_once and was_in_use):
                return
            try:
                self._links[0] = fresh = self._new_link()
            except ConfigError:  # files that went wrong: the next call says so
                return
        with suppress(ConfigError, RemoteError):
            fresh.client.warm_up(WARM_UP_S, lambda answered: self._warmed(fresh, answered))

    def _warmed(self, link: Link, answered: bool) -> None:
        """Note that a new connection is ready; one that could not be made is not kept: gRPC would be slow to retry."""
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

    def answered(self, link: Link, network_s: float) -> None:
        """Learn from an answer that spent `network_s` outside the server; handshakes in it only make for patience."""
        with self._exclusively():
            link.answered_at_s, link.late = time.monotonic(), 0
            self.round_trips = self.round_trips.answered(network_s)

    def broke(self) -> None:
        """Have more patience: a connection was taken for dead."""
        with self._exclusively():
            self.round_trips = self.round_trips.broke()

    def close(self) -> None:
        """Cancel what is in flight and close every connection."""
        with self._exclusively():
            self._closed = True
            links, self._links = [*self._links, *self._leaving], [None, None]
        for link in links:
            if link is not None:
                link.client.close()

    def _new_link(self) -> Link:
        timeout_s = self.round_trips.timeout_s
        client = open_client(
            self.endpoint,
            self._security,
            max_message_bytes=self._max_message_bytes,
            silence_s=timeout_s,
            options=channel_options(timeout_s),
        )
        return Link(client, timeout_s)

    def _retire(self, link: Link) -> None:
        link.retired = True
        self._links = [None if one is link else one for one in self._links]
        if link.users and link not in self._leaving:
            self._leaving.append(link)  # what is under way on it ends in peace, or with the station
        self._close_unused(link)

    def _close_unused(self, link: Link) -> None:
        if link.retired and link.users == 0:
            self._leaving = [one for one in self._leaving if one is not link]
            self._doomed.append(link)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the lock. Connections that are done with are closed after it, since that may call back into here."""
        doomed: list[Link] = []
        try:
            with self._lock:
                try:
                    yield
                finally:
                    doomed, self._doomed = self._doomed, doomed
        finally:
            for link in doomed:
                link.client.close()
