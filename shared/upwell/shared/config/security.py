"""Addresses of servers, TLS, tokens, and the refusal to expose a server to a network by accident."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from upwell.shared.errors import ConfigError, without_secrets
from upwell.shared.value_classes import value_class

_log = logging.getLogger(__name__)
_DNS = r"dns://(?P<server>[A-Za-z0-9.:\[\]-]*)/(?P<address>[^/]+)"
_WEB = (
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]+))?"
    r"(?P<prefix>(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*)/?"
)
_PORTS = {"http": "80", "https": "443"}


@value_class
class TlsFiles:
    """PEM files: this side's certificate chain and key, and the CAs it trusts.

    A server needs `cert` and `key`; with `ca` (the issuers of client certificates) every client must present one. On a
    client `ca` holds the issuers of the server's certificate (None: the system's), and `cert` and `key` are presented
    to a server that asks. All files are watched: new ones take effect without a restart.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """The files that are given."""
        return [path for path in (self.cert, self.key, self.ca) if path is not None]


@value_class
class ServerSecurity:
    """How a server is protected: by TLS, by a `tokens.yaml`, or, if `insecure`, by its surroundings."""

    tls: TlsFiles | None = None
    tokens: Path | None = None
    insecure: bool = False


@value_class
class ClientSecurity:
    """How a client identifies itself and which servers it trusts. `token_file` holds one token, read on change."""

    tls: TlsFiles | None = None
    token_file: Path | None = None
    insecure: bool = False


@value_class
class Address:
    """`HOST:PORT` (an IPv6 host in brackets) or, if `socket_path` is set, a unix socket.

    With `name_server` set (empty: the system's), the address stands for all servers behind the name `host`. With
    `scheme` (`http` or `https`) the server is called over HTTP/1.1, with `prefix` (empty, or `/` and more) before its
    paths.
    """

    host: str = ""
    port: int = 0
    socket_path: Path | None = None
    name_server: str | None = None
    scheme: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        """In gRPC's notation; a URL if the server is called over HTTP/1.1."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        plain = f"{self.bracketed_host}:{self.port}"
        if self.scheme:
            return f"{self.scheme}://{plain}{self.prefix}"
        return plain if self.name_server is None else f"dns://{self.name_server}/{plain}"

    @property
    def bracketed_host(self) -> str:
        """The host as written before a port: an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """Host and port as in a URL and in the header `Host`, without the scheme's default port."""
        implied = _PORTS.get(self.scheme) == str(self.port)
        return self.bracketed_host if implied else f"{self.bracketed_host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can be at the other end: `localhost`, 127.0.0.0/8, ::1 or a unix socket."""
        if self.socket_path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Raises `ConfigError`."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path or "\0" in path:
            raise ConfigError.at(None, f"{without_secrets(text)!r} has no socket path; expected unix:PATH")
        return Address(socket_path=Path(path))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    plain = bool(host) and not any(character in "/[]@ " or not character.isprintable() for character in host)
    valid = colon and plain and (":" in host) == bracketed and port.isascii() and port.isdigit() and len(port) <= 5
    if not valid or int(port) > 65535:
        raise ConfigError.at(
            None, f"{without_secrets(text)!r} is not an address; expected HOST:PORT, [IPV6]:PORT or unix:PATH"
        )
    return Address(host, int(port))


def parse_endpoint(text: str) -> Address:
    """Parse the address of a server to call: as `parse_address`, or `dns:///NAME:PORT` for all servers of that name.

    `dns://SERVER/NAME:PORT` asks that name server instead of the system's. `https://HOST[:PORT][/PREFIX]` and
    `http://...` are called over HTTP/1.1. Raises `ConfigError`.
    """
    if text.startswith(("http:", "https:")):
        return _parse_web(text)
    found = re.fullmatch(_DNS, text)
    if found is None and not text.startswith("dns:"):
        return parse_address(text)
    try:
        address = parse_address(found["address"] if found else "")
    except ConfigError:
        address = Address(socket_path=Path())
    if found is None or address.socket_path is not None:
        raise ConfigError.at(None, f"{without_secrets(text)!r} has no server name; expected dns:///NAME:PORT")
    return replace(address, name_server=found["server"])


def _parse_web(text: str) -> Address:
    """Parse a URL of a host, an optional port, and an optional path of plain segments. Raises `ConfigError`."""
    found = re.fullmatch(_WEB, text)
    try:
        if found is None:
            raise ConfigError.at(None, "")
        address = parse_address(f"{found['host']}:{found['port'] or _PORTS[found['scheme']]}")
    except ConfigError:
        # The URL is not shown, since people put passwords into URLs.
        expected = "expected https://HOST, perhaps with :PORT and a plain /PATH, and nothing else"
        raise ConfigError.at(None, f"an endpoint that begins with http cannot be read; {expected}") from None
    return replace(address, scheme=found["scheme"], prefix=found["prefix"])


def check_listen(listen: Sequence[str], security: ServerSecurity) -> list[Address]:
    """Parse the addresses that one server listens on: at least one, all different, none unprotected.

    Raises `ConfigError`.
    """
    addresses = [parse_address(text) for text in listen]
    if not addresses or len(set(addresses)) < len(addresses):
        raise ConfigError.at(None, "expected one or more different addresses to listen on, each HOST:PORT or unix:PATH")
    check_exposure(listen, security)
    return addresses


def check_exposure(listen: Sequence[str], security: ServerSecurity) -> None:
    """Refuse to expose a server without protection. Raises `ConfigError`; `insecure` allows everything."""
    if security.insecure:
        return
    for text in listen:
        if parse_address(text).is_loopback:
            continue
        has_client_ca = security.tls is not None and security.tls.ca is not None
        if security.tokens is None and not has_client_ca:
            raise ConfigError.at(
                None,
                f"{text} can be reached from outside this machine and callers would not be authenticated: "
                "give tokens or a client CA, or write `insecure: true`",
            )
        if security.tls is None:
            raise ConfigError.at(
                None,
                f"{text} can be reached from outside this machine and tokens would cross the network in clear: "
                "give a TLS certificate and key, or write `insecure: true`",
            )


def warn_of_root(listen: Sequence[str]) -> None:
    """Warn that a server which other machines can reach runs as root, which it does not need."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and not all(parse_address(text).is_loopback for text in listen):
        _log.warning("this server can be reached from outside this machine and runs as root; give it its own user")


def check_endpoint(endpoint: str, security: ClientSecurity) -> Address:
    """Parse the address of a server to call. Raises `ConfigError` if requests would cross a network in clear text."""
    address = parse_endpoint(endpoint)
    if address.scheme == "http" and security.tls:
        raise ConfigError.at(
            None, f"{endpoint} does not use TLS, but `tls` is given: write https://, or leave `tls` out"
        )
    if address.scheme == "http" and not (address.is_loopback or security.insecure):
        raise ConfigError.at(
            None, f"requests to {endpoint} would cross the network in clear: write https://, or `insecure: true`"
        )
    if not (address.is_loopback or address.scheme or security.tls or security.insecure):
        raise ConfigError.at(
            None,
            f"requests to {endpoint} would cross the network in clear: give `tls` (empty for the system's "
            "certificate authorities), or write `insecure: true`",
        )
    return address


def _read_by(parse: Callable[[str], Address], *, is_tcp: bool = False) -> AfterValidator:
    def check(text: str) -> str:
        try:
            address = parse(text)
        except ConfigError as error:
            raise ValueError(error.problems[0].message) from None
        if is_tcp and address.socket_path is not None:
            raise ValueError(f"expected HOST:PORT, got {without_secrets(text)!r}")
        return text

    return AfterValidator(check)


ListenAddress: TypeAlias = Annotated[str, _read_by(parse_address)]
"""`HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`, where a server listens."""

TcpAddress: TypeAlias = Annotated[str, _read_by(parse_address, is_tcp=True)]
"""`HOST:PORT` or `[IPV6]:PORT`, where a server listens."""


def check_all_differ(keys: Mapping[str, Sequence[str]]) -> None:
    """Raise `ValueError` if an address appears twice, under one key or two. Port 0 never counts as equal.

    Otherwise the second listener would report that another program uses the port.
    """
    found: dict[Address, str] = {}
    for key, texts in keys.items():
        for text in texts:
            address = parse_address(text)
            if address.socket_path is None and not address.port:
                continue
            if address in found:
                where = f"`{key}`" if found[address] == key else f"`{found[address]}` and `{key}`"
                raise ValueError(f"{text} is repeated in {where}; each needs a different address")
            found[address] = key


def _check_interface(name: str) -> str:
    import socket  # an agent by itself does without it

    if not hasattr(socket, "SO_BINDTODEVICE"):
        raise ValueError("a network interface can be chosen on Linux alone")
    if not 0 < len(name.encode()) < _INTERFACE_BYTES or not name.isprintable() or any(one in "/ " for one in name):
        raise ValueError(f"expected the name of a network interface, such as wlan0, got {name!r}")
    return name


_INTERFACE_BYTES = 16
"""IFNAMSIZ of Linux, with the byte that ends a name."""

InterfaceName: TypeAlias = Annotated[str, AfterValidator(_check_interface)]
"""A network interface of this device, whether it is there now or not."""

Endpoint: TypeAlias = Annotated[str, _read_by(parse_endpoint)]
"""The address of a server to call: see `parse_endpoint`."""
