"""The service's sockets: HTTP/1.1 over TLS, by uvicorn, where a client may show a certificate of the fleet."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from upwell.fleet.config import FleetServiceSection
from upwell.fleet.enrolment.authority import Authority
from upwell.fleet.opamp.endpoint import PEER
from upwell.fleet.service.application import Fleet, application
from upwell.fleet.service.upkeep import Upkeep
from upwell.shared.config.security import Address, parse_address
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

IDLE_S = 5.0
"""A connection on which nothing is asked for so long is closed: devices make a new one for each poll."""

HEAD_S = 10.0
"""A connection that has not sent the head of its first request by then is closed."""

_MOST_CONNECTIONS = 4096
_BACKLOG = 1024
_DRAIN_S = 10
_log = logging.getLogger(__name__)


class PeerProtocol(H11Protocol):
    """Tells the application which certificate the client has shown, and waits for no head for ever."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Look at the certificate once for all requests of the connection."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        application = self.app

        async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
            scope[PEER] = certificate
            await application(cast(Any, scope), cast(Any, receive), cast(Any, send))

        self.app = cast(Any, with_peer)
        self._patience = self.loop.call_later(HEAD_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        is_asked = cast(object, self.cycle) is not None
        if not is_asked and not self.transport.is_closing():
            self.transport.close()


class FleetServer:
    """A running service: made with its sockets bound, serves in `run` until `stop`.

    `addresses` are those that it listens on, `url` the first of them as devices call it. Raises `ConfigError` where an
    address cannot be had.
    """

    def __init__(self, fleet: Fleet) -> None:
        section = fleet.section
        self._fleet = fleet
        context = self._renewed = server_context(section, fleet.authority)
        context.sni_callback = self._choose
        self._sockets = _bind(section)
        ports = [one.getsockname()[1] for one in self._sockets]
        hosts = [parse_address(text).host for text in section.listen]
        self.addresses = [str(Address(host, port)) for host, port in zip(hosts, ports, strict=True)]
        self.url = f"https://{Address(section.names[0], ports[0])}"
        config = uvicorn.Config(
            application(fleet, self.url), http=PeerProtocol, ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, timeout_keep_alive=round(IDLE_S), backlog=_BACKLOG,
            limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=_DRAIN_S,
            h11_max_incomplete_event_size=32768,
            ssl_context_factory=lambda *_: context,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._upkeep = Upkeep(fleet.state, section, self._renew)

    def run(self) -> None:
        """Serve until `stop`, or a signal where this is the main thread. What was learnt is written then."""
        self._upkeep.start()
        try:
            self._server.run(self._sockets)
        finally:
            self._upkeep.stop()
            for one in self._sockets:
                one.close()
            self._fleet.close()

    def _renew(self) -> None:
        """Take over new certificate files, or a new certificate of the service's own, for the next connections.

        In a context of its own: one that handshakes are using would have the key of another certificate for a moment.
        """
        try:
            self._renewed = server_context(self._fleet.section, self._fleet.authority)
        except ConfigError as error:
            _log.error("the service goes on with its former certificate: %s", error)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        """Called once for each connection, when its client has said hello."""
        connection.context = self._renewed

    def stop(self) -> None:
        """Answer what was accepted, and end. May be called from any thread."""
        self._server.should_exit = True


def server_context(section: FleetServiceSection, authority: Authority) -> ssl.SSLContext:
    """TLS with the service's certificate; a client may show one that the authority has signed. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if section.tls is not None:
        pair = (read_file(section.tls.cert, "the certificate"), read_file(section.tls.key, "the key"))
    else:
        pair = authority.make_server(section.names, time.time())
    try:
        _load_pair(context, *pair)
    except (ssl.SSLError, ValueError):
        where = section.tls.cert if section.tls else None
        raise ConfigError.at(
            where, "expected a certificate and its key in PEM form, without a passphrase", "fleet.tls"
        ) from None
    context.load_verify_locations(cadata=authority.pem.decode("ascii"))
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """`ssl` takes a certificate's key from a file alone."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in (("cert", certificate), ("key", key)):
            path = Path(folder, name)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
        context.load_cert_chain(Path(folder, "cert"), Path(folder, "key"), password=lambda: b"")


def _bind(section: FleetServiceSection) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for text in section.listen:
            address = parse_address(text)
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            bound.append(socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG))
    except OSError as error:
        for one in bound:
            one.close()
        raise ConfigError.at(None, f"cannot listen on {text}: {error.strerror or error}", "fleet.listen") from None
    return bound
