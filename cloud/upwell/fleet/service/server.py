"""The service's sockets: HTTP/1.1 over TLS by uvicorn; a client may present a certificate of the fleet."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from upwell.fleet.budget.budget_store import all_budgets, solve_all
from upwell.fleet.config import FleetServiceSection
from upwell.fleet.enrolment.certificate_authority import Authority
from upwell.fleet.errors import DatabaseUnavailable
from upwell.fleet.opamp.opamp_endpoint import PEER
from upwell.fleet.opamp.poll_handler import FleetState
from upwell.fleet.registry.device_events import forget_events
from upwell.fleet.registry.device_presence import PresenceUpdate, write_batch
from upwell.fleet.registry.device_questions import forget_questions
from upwell.fleet.registry.devices import forget_history
from upwell.fleet.registry.shadow_releases import forget_lines
from upwell.fleet.rollout.rollout_store import advance, followed
from upwell.fleet.service.application import Fleet, application
from upwell.fleet.storage.tables import CERTIFICATES
from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.process import stop_signals

IDLE_S = 5.0
"""Idle time after which a connection is closed: devices open a new one for each poll."""

HEAD_S = 10.0
"""Time limit for the head of a request, and for a client that takes nothing of an answer."""

GOODBYE_S = 0.5
"""How long shutdown waits for a client when closing its connection."""

MOST_CONNECTIONS = 768
"""Maximum open connections; more wait in the kernel, without memory of the process. TLS takes about 0.3 MiB for
each."""

_BACKLOG = 1024
_NO_SOCKET_S = 1.0
_DRAIN_S = 10
_log = logging.getLogger(__name__)


class PeerProtocol(H11Protocol):
    """Passes the client's certificate to the application, and limits the wait for the client.

    uvicorn waits for ever for the rest of a head, and for a client that does not read.
    """

    _patience: asyncio.TimerHandle | None = None

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.is_lost = asyncio.Event()
        self._last_seen: tuple[object, int] | None = (None, 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Read the certificate once for all requests of the connection."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        application = self.app

        async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
            scope[PEER] = certificate
            await application(cast("Any", scope), cast("Any", receive), cast("Any", send))

        self.app = cast("Any", with_peer)
        self._patience = self.loop.call_later(HEAD_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._patience is not None:
            self._patience.cancel()
        self.is_lost.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection once its requests are answered, as the server stops.

        TLS waits for the client's close_notify, which a client that keeps connections open does not send. Once
        everything is sent, the client has `GOODBYE_S` for it.
        """
        if not self.transport.is_closing():  # closed twice, a TLS transport drops its unsent data
            super().shutdown()
        if self.transport.is_closing() and self._unsent_bytes() == 0:
            self.loop.call_later(GOODBYE_S, self.transport.abort)

    def _unsent_bytes(self) -> int:
        try:
            return self.transport.get_write_buffer_size()
        except AttributeError:  # uvicorn has closed it twice, after an error
            return 1

    def _check(self) -> None:
        """End the connection if the client must go on, and has not since the last check."""
        cycle, unsent_bytes = cast("RequestResponseCycle | None", self.cycle), self._unsent_bytes()
        is_waited_for = cycle is None or cycle.response_complete or unsent_bytes > 0
        if is_waited_for and self._last_seen == (cycle, unsent_bytes):
            self.transport.abort()
            return
        self._last_seen = (cycle, unsent_bytes) if is_waited_for else None
        self._patience = self.loop.call_later(HEAD_S, self._check)


class BoundedServer(uvicorn.Server):
    """Holds at most `MOST_CONNECTIONS`, including handshakes, and accepts one more in each pass of the event loop.

    So connections that have begun make progress before new ones begin. asyncio's own server accepts a whole burst at
    once, and all of it is late together. `config` has TLS.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept on these sockets."""
        await super().startup([])
        self._slots = asyncio.Semaphore(MOST_CONNECTIONS)
        self._accepting = [asyncio.ensure_future(self._accept(one)) for one in sockets or []]
        self._open: set[asyncio.Task[None]] = set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and end open connections."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        while True:
            await self._slots.acquire()
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except ConnectionAbortedError:
                self._slots.release()
                continue
            except OSError as error:  # for example too many open files
                self._slots.release()
                _log.error("no connection can be accepted: %s", error.strerror)
                await asyncio.sleep(_NO_SOCKET_S)
                continue
            task = asyncio.ensure_future(self._hold(connection))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(0)

    async def _hold(self, connection: socket.socket) -> None:
        """One connection, until it is lost."""
        try:
            with suppress(OSError):  # the handshake failed
                _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                    self._protocol, connection, ssl=self.config.ssl, ssl_handshake_timeout=HEAD_S
                )
                await protocol.is_lost.wait()
        finally:
            self._slots.release()

    def _protocol(self) -> PeerProtocol:
        return PeerProtocol(self.config, self.server_state, self.lifespan.state)


class FleetServer:
    """A running service: made with its sockets bound, serves in `run` until `stop`.

    `addresses` are those that it listens on, `url` is the first of them as devices call it. Raises `ConfigError` if
    an address is not available.
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
            timeout_graceful_shutdown=_DRAIN_S, h11_max_incomplete_event_size=32768,
            ssl_context_factory=lambda *_: context,
        )  # fmt: skip
        self._server = BoundedServer(config)
        self._upkeep = FleetHousekeeping(fleet.state, section, self._renew)

    def run(self) -> None:
        """Serve until `stop`, or until a signal in the main thread. Pending data is then written."""
        if threading.current_thread() is threading.main_thread():
            for number in {*stop_signals()} - {signal.SIGINT}:  # uvicorn raises SIGTERM again once it has ended
                signal.signal(number, lambda *_: self.stop())
        self._upkeep.start()
        try:
            self._server.run(self._sockets)
        finally:
            self._upkeep.stop()
            for one in self._sockets:
                one.close()
            self._fleet.close()

    def _renew(self) -> None:
        """Use new certificate files, or a new certificate of the service's own, for the next connections.

        Builds a new TLS context: one in use by handshakes would for a moment have the key of another certificate.
        """
        try:
            self._renewed = server_context(self._fleet.section, self._fleet.authority)
        except ConfigError as error:
            _log.error("the service keeps using its former certificate: %s", error)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        """Called once for each connection, after the ClientHello."""
        connection.context = self._renewed

    def stop(self) -> None:
        """Answer accepted requests, and end. May be called from any thread."""
        self._server.should_exit = True


def server_context(section: FleetServiceSection, authority: Authority) -> ssl.SSLContext:
    """TLS with the service's certificate; a client may present one signed by the authority. Raises `ConfigError`."""
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
    """Load certificate and key; `ssl` takes a key only from a file."""
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


WRITE_S = 5.0
"""How often the data of polls is written and roll-outs advance; at least as often as devices poll."""

BREAK_S = 60.0
"""Longer without a step of the roll-outs, or a clock set back, is a break: the service was off, or its database away,
and heard no device meanwhile."""

PRUNE_S = 3600.0


class FleetHousekeeping:
    """A background thread: writes batches, deletes old rows, and steps roll-outs.

    It also calls `hourly` every hour.
    """

    def __init__(self, state: FleetState, section: FleetServiceSection, hourly: Callable[[], None]) -> None:
        self._state = state
        self._hourly = hourly
        self._history_s, self._poll_s = section.history, section.poll
        self._stop = threading.Event()
        self._stepped_unix_s = self._listened_from_unix_s = -math.inf
        self._thread = BackgroundThread("fleet-housekeeping", self._loop, self._stop.is_set)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End, after everything is written."""
        self._stop.set()
        self._thread.join()
        self._write()

    def _loop(self) -> None:
        prune_at_s = time.monotonic()
        while not self._stop.wait(min(WRITE_S, self._poll_s)):
            self._write()
            self._try(self._advance)
            self._try(self._share_out)
            if time.monotonic() >= prune_at_s:
                is_pruned = self._try(self._prune)
                if self._try(lambda _: self._hourly()) and is_pruned:  # else soon again, once the database answers
                    prune_at_s = time.monotonic() + PRUNE_S

    @staticmethod
    def _try(step: Callable[[float], None]) -> bool:
        """Run a step for now; what fails for one roll-out or budget must not end the work for all others.

        Returns whether the database was there.
        """
        try:
            step(time.time())
        except DatabaseUnavailable:
            return False  # logged there, and all of it comes again
        except Exception:  # noqa: BLE001 (the boundary: the other steps go on)
            _log.exception("a step of the housekeeping failed")
        return True

    def _write(self) -> None:
        presence, batch = self._state.presence, PresenceUpdate()
        if presence.is_written:
            return
        try:
            with self._state.database.writing() as connection:
                batch = presence.take()  # inside: a poll's immediate write comes wholly before or after
                write_batch(connection, batch)
        except DatabaseUnavailable:
            presence.give_back(batch)
        except SQLAlchemyError as error:
            _log.error(
                "the reports of devices cannot be written to the database: %s; this is tried again",
                type(error).__name__,
            )
            presence.give_back(batch)

    def _advance(self, now_unix_s: float) -> None:
        """Step the roll-outs, each in its own transaction."""
        with self._state.database.reading() as connection:
            rollouts = followed(connection)
        if not 0.0 <= now_unix_s - self._stepped_unix_s <= BREAK_S:
            self._listened_from_unix_s = now_unix_s
        has_stepped = [self._try(partial(self._advance_one, one)) for one in rollouts]
        if all(has_stepped):
            self._stepped_unix_s = now_unix_s

    def _advance_one(self, rollout_id: str, now_unix_s: float) -> None:
        with self._state.database.writing() as connection:
            advance(connection, rollout_id, self._listened_from_unix_s, now_unix_s, self._state.presence.last_seen)

    def _share_out(self, now_unix_s: float) -> None:
        """Share budgets again, about as often as devices poll."""
        database, every_s = self._state.database, min(60.0, self._state.presence.poll_s)
        with database.reading() as connection:
            has_budgets = bool(all_budgets(connection))
        if has_budgets:
            with database.writing() as connection:
                solve_all(connection, now_unix_s, every_s)

    def _prune(self, now_unix_s: float) -> None:
        with self._state.database.writing() as connection:
            forget_history(connection, now_unix_s - self._history_s)
            forget_events(connection, now_unix_s)
            forget_questions(connection, now_unix_s)
            forget_lines(connection, now_unix_s)
            # Never a device's last one: after an hour of a clock that is ahead, none would be let in any more.
            later = CERTIFICATES.alias()
            is_replaced = (
                select(later.c.serial)
                .where(later.c.device_id == CERTIFICATES.c.device_id)
                .where(later.c.issued_unix_s > CERTIFICATES.c.issued_unix_s)
                .exists()
            )
            connection.execute(delete(CERTIFICATES).where(CERTIFICATES.c.expires_unix_s < now_unix_s, is_replaced))
