"""An HTTP client's connections, direct or through the environment's proxy, and their pool. No wait outlasts its
deadline."""

from __future__ import annotations

import base64
import io
import ipaddress
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPResponse
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from upwell.shared.config.security import Address
from upwell.shared.errors import ConfigError
from upwell.shared.platform.socket_connect import Hold, connect, left_s

_DEFAULT_PORT = 80


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy for CONNECT. `authorization` is the value of its header, "" for none."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Without credentials."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def proxy_for(address: Address) -> Proxy | None:
    """The proxy for `address`, or None: for this machine, for `http://`, and for hosts in `NO_PROXY`.

    Raises `ConfigError` if it cannot be used; the text leaves out the URL, which may have a password.
    """
    settings = getproxies_environment()
    text = settings.get("https", "").strip()
    if address.scheme != "https" or address.is_loopback or not text:
        return None
    if _goes_without(address, settings.get("no", "")):
        return None
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname, url.port or _DEFAULT_PORT
    except ValueError:
        raise _unusable() from None
    if url.scheme != "http" or not host or not all("!" <= character <= "~" for character in host):
        raise _unusable()
    authorization = ""
    if url.username is not None:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(host, port, authorization)


def _goes_without(address: Address, no_proxy: str) -> bool:
    """Whether an entry of `NO_PROXY` matches this host: its name, a parent domain, its address or network, or `*`; with
    or without the port.
    """
    host, port = address.host.lower(), f":{address.port}"
    for entry in (one.strip().lower().removesuffix(port) for one in no_proxy.split(",")):
        name = entry.removeprefix("*").removeprefix(".")
        if entry and (not name or host == name.strip("[]") or host.endswith(f".{name}") or _is_within(host, name)):
            return True
    return False


def _is_within(host: str, network: str) -> bool:
    try:
        return "/" in network and ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _unusable() -> ConfigError:
    return ConfigError.at(
        None, "HTTPS_PROXY cannot be used: expected http://HOST:PORT or http://NAME:PASSWORD@HOST:PORT"
    )


CONNECT_S = 3.0
"""Time limit for connecting, including proxy and TLS handshake."""

_JOINED_BYTES = 64 << 10
"""Size up to which a copy costs less than another system call (bytes)."""

MOST_IDLE = 8
"""Maximum number of idle connections kept."""

IDLE_S = 50.0
"""Idle time after which a connection is closed: proxies and load balancers close idle ones after a minute."""

CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors that mean that the other end closed the connection, rather than staying silent."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""`struct linger`: on, with a timeout of 0."""


class _Reader(io.BufferedReader):
    """A reader that lives as long as its connection, though every answer read from it closes it."""

    def close(self) -> None:
        """Do nothing."""


class HttpConnection(io.RawIOBase):
    """A connected socket on which no wait goes beyond `until_s` (monotonic), however slowly bytes come."""

    def __init__(self, connected: socket.socket, until_s: float) -> None:
        self.socket = connected
        self.until_s = until_s
        self._ended = False
        self._reader = _Reader(self)
        self._kept: tuple[int, int] | None = None

    @property
    def was_unread(self) -> bool:
        """Whether the other end closed the kept connection before any byte of the current call reached even its kernel.
        Then nobody has read any of that call.

        Known only on Linux. A reset proves nothing: it acknowledges nothing, though all may have been read.
        """
        moved = _moved(self.socket)
        if self._kept is None or moved is None:
            return False
        # A clean end counts as one byte, and would have acknowledged what had come before it.
        return moved[0] == self._kept[0] and moved[1] > self._kept[1]

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive available bytes; waits for the first byte unless in look-only mode (None: there is nothing)."""
        self.socket.settimeout(left_s(self.until_s) if self.until_s else 0.0)
        try:
            size = self.socket.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        self._ended = size == 0
        return size

    def is_quiet(self) -> bool:
        """Whether the connection is open and no unexpected bytes have come. Does not wait."""
        self.until_s = 0.0
        try:
            self._kept = _moved(self.socket)  # before the check, so that an end right after it is noticed
            return not self._reader.peek(1) and not self._ended
        except OSError:
            return False

    def makefile(self, _: str) -> io.BufferedReader:
        """The reader that `HTTPResponse` asks for."""
        return self._reader

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in order."""
        if sum(map(len, pieces)) <= _JOINED_BYTES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            view = memoryview(piece)
            while view:
                self.socket.settimeout(left_s(self.until_s))
                view = view[self.socket.send(view) :]

    def response(self, method: str) -> HTTPResponse:
        """Status and headers of the answer. Raises `OSError` and `http.client.HTTPException`."""
        found = HTTPResponse(self, method=method)  # type: ignore[arg-type]  # it asks for `makefile` alone
        found.begin()
        if self._ended:  # `HTTPResponse` takes it for the end of the headers
            raise ConnectionResetError("the connection ended within the headers of the answer")
        return found

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self.socket.close()

    def abort(self) -> None:
        """Close with a reset: unsent data in the kernel is dropped, which frees the link at once."""
        with suppress(OSError):  # already closed
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close()


class Pool:
    """The idle connections of a client, the latest used first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[HttpConnection, ssl.SSLContext | None, float]] = []
        self._closed = False

    def put(self, wire: HttpConnection, context: ssl.SSLContext | None) -> bool:
        """Keep a connection made with `context`; returns False if the caller must close it instead."""
        try:  # no keepalive probes on idle connections
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        except OSError:  # it was just lost
            return False
        with self._lock:
            if self._closed or len(self._idle) >= MOST_IDLE:
                return False
            self._idle.append((wire, context, time.monotonic()))
            return True

    def take(self, context: ssl.SSLContext | None) -> HttpConnection | None:
        """A connection made with the same context that seems alive, or None. Others are closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                wire, made_with, since_s = self._idle.pop()
            if made_with is context and time.monotonic() - since_s < IDLE_S and wire.is_quiet():
                with suppress(OSError):  # the call will find out
                    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return wire
            wire.close()

    def close(self) -> None:
        """Close all connections, and keep none from now on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for wire, _, _ in idle:
            wire.close()


@dataclass(frozen=True)
class ProxyRoute:
    """How connections to a server are made, over the network interface `interface` if one is named. `silence_s`: after
    so long without a word one is found to be dead."""

    address: Address
    proxy: Proxy | None
    silence_s: float | None
    interface: str = ""

    def dial(self, context: ssl.SSLContext | None, until_s: float, hold: Hold) -> HttpConnection:
        """Open a connection, with TLS if there is a `context`. Raises `OSError`, including `TimeoutError`."""
        far = self.proxy or self.address
        connected = connect(far.host, far.port, until_s, hold, self.interface)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.silence_s is not None:
                _notice_silence(connected, self.silence_s)
            if self.proxy is not None:
                _tunnel(HttpConnection(connected, until_s), self.proxy, self.address)
            if context is not None:
                connected = context.wrap_socket(
                    connected, server_hostname=self.address.host, do_handshake_on_connect=False
                )
                hold(connected)
                connected.settimeout(left_s(until_s))
                connected.do_handshake()
        except BaseException:
            connected.close()
            raise
        return HttpConnection(connected, until_s)


def _tunnel(wire: HttpConnection, proxy: Proxy, address: Address) -> None:
    """Let the proxy connect to the server. Raises `OSError` with a text free of credentials."""
    where = f"{address.bracketed_host}:{address.port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    wire.send(["\r\n".join([*lines, "", ""]).encode("ascii")])
    response = wire.response("CONNECT")
    if response.status == _PROXY_AUTHENTICATION:
        raise ConnectionError(f"the proxy {proxy} requires credentials: HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT")
    if not 200 <= response.status < 300:
        raise ConnectionError(f"the proxy {proxy} does not connect to {where}: it answered {response.status}")
    if not wire.is_quiet():
        raise ConnectionError(f"the proxy {proxy} closed the connection, or sent data that was not requested")


_PROXY_AUTHENTICATION = 407


def _notice_silence(connected: socket.socket, silence_s: float) -> None:
    """Let the kernel detect a dead peer, as far as it can: sent bytes that are not acknowledged, or a keepalive probe
    without an answer after `silence_s` of silence.
    """
    seconds = max(1, round(silence_s))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2e3 * silence_s))


_MOVED = struct.Struct("=QQ")
_MOVED_AT = 120
"""Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info` of Linux 4.1 and later."""


def _moved(connected: socket.socket) -> tuple[int, int] | None:
    """The bytes that the other end's kernel has acknowledged, and the bytes received from it, its FIN included; None if
    this kernel does not say.
    """
    if sys.platform != "linux":
        return None
    end = _MOVED_AT + _MOVED.size
    data = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, end)
    if len(data) < end:
        return None
    acknowledged, received = _MOVED.unpack_from(data, _MOVED_AT)
    return acknowledged, received
