"""Who may talk to whom: TLS, tokens, and the refusal to be open to a network by accident."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from upwell.shared.errors import ConfigError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: this side's certificate chain and key, and whom to trust.

    On a server `cert` and `key` are needed, and `ca` (the issuers of client certificates) makes every client show
    one. On a client `ca` holds the issuers of the server's certificate (the system's where None), and `cert`
    with `key` are shown to a server that asks. All are watched: new ones take over without a restart.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True)
class ServerSecurity:
    """How a server is protected: TLS, a `tokens.yaml`, or, with `insecure`, by what stands around it."""

    tls: TlsFiles | None = None
    tokens: Path | None = None
    insecure: bool = False


@dataclass(frozen=True)
class ClientSecurity:
    """How a client proves itself and whom it believes. The file at `token_file` holds one token, read on change."""

    tls: TlsFiles | None = None
    token_file: Path | None = None
    insecure: bool = False


@dataclass(frozen=True)
class Address:
    """`HOST:PORT` (an IPv6 host in brackets) or, where `socket_path` is set, a unix socket."""

    host: str = ""
    port: int = 0
    socket_path: Path | None = None

    def __str__(self) -> str:
        """As gRPC takes it."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

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
    """Read `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Raises `ConfigError`."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path or "\0" in path:
            raise ConfigError.at(None, f"{text!r} names no socket; expected unix:PATH")
        return Address(socket_path=Path(path))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    plain = bool(host) and not any(character in "/[]@ " or not character.isprintable() for character in host)
    valid = colon and plain and (":" in host) == bracketed and port.isascii() and port.isdigit() and len(port) <= 5
    if not valid or int(port) > 65535:
        raise ConfigError.at(None, f"{text!r} is no address; expected HOST:PORT, [IPV6]:PORT or unix:PATH")
    return Address(host, int(port))


def check_exposure(listen: Sequence[str], security: ServerSecurity) -> None:
    """Refuse to serve a network without protection. Raises `ConfigError`; `insecure` allows everything."""
    if security.insecure:
        return
    for text in listen:
        if parse_address(text).is_loopback:
            continue
        has_client_ca = security.tls is not None and security.tls.ca is not None
        if security.tokens is None and not has_client_ca:
            raise ConfigError.at(
                None,
                f"{text} can be reached from outside this machine and nobody would be asked who they are: "
                "give tokens or a client CA, or write `insecure: true`",
            )
        if security.tls is None:
            raise ConfigError.at(
                None,
                f"{text} can be reached from outside this machine and tokens would cross the network in clear: "
                "give a TLS certificate and key, or write `insecure: true`",
            )


def check_endpoint(endpoint: str, security: ClientSecurity) -> Address:
    """The address of a server to call. Raises `ConfigError` where requests would cross a network in clear."""
    address = parse_address(endpoint)
    if not (address.is_loopback or security.tls or security.insecure):
        raise ConfigError.at(
            None,
            f"requests to {endpoint} would cross the network in clear: give `tls` (empty for the system's "
            "certificate authorities), or write `insecure: true`",
        )
    return address
