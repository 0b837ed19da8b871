"""The proxy that the environment names, and connections through it."""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from upwell.shared.config.addresses import Address
from upwell.shared.errors import ConfigError
from upwell.shared.oip.http.client.connection import HttpConnection, notice_silence
from upwell.shared.platform.socket_connect import Hold, connect, left_s

_DEFAULT_PORT = 80
_PROXY_AUTHENTICATION = 407


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
                notice_silence(connected, self.silence_s)
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
