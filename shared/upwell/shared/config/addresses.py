"""Addresses of servers and network interfaces: parsed, checked, and shown without secrets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from upwell.shared.errors import ConfigError
from upwell.shared.value_classes import value_class

_DNS = r"dns://(?P<server>[A-Za-z0-9.:\[\]-]*)/(?P<address>[^/]+)"
_WEB = (
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]+))?"
    r"(?P<prefix>(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*)/?"
)
_PORTS = {"http": "80", "https": "443"}


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


_SCHEME = r"[a-z][a-z0-9+.-]*://"
_QUERY = r"([a-z][a-z0-9+.-]*:/.*?\?|\S*?\?).+"
"""An address, even one with a slip in it, and its query; a text with a space before "?" is none."""


def without_secrets(text: str) -> str:
    """A value that may be meant as an address, for a message: without what may be a user, password or token."""
    address, digest, rest = text.partition("@sha256:")
    hidden, at, place = address.rpartition("@")
    scheme = re.match(_SCHEME, hidden, re.IGNORECASE)
    if "?" in hidden:  # the last @ may lie in the query, and a token behind it
        return f"{scheme[0] if scheme else ''}…"
    shown = f"{f'{scheme[0]}…@' if scheme else '…@'}{place}" if at else place
    query = re.fullmatch(_QUERY, f"{shown}{digest}{rest}", re.IGNORECASE | re.DOTALL)
    return f"{query[1]}…" if query else f"{shown}{digest}{rest}"
