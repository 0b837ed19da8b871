"""How servers and clients are protected: TLS, tokens, and the refusal to expose a server to a network by accident."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from upwell.shared.config.addresses import Address, parse_address, parse_endpoint
from upwell.shared.errors import ConfigError
from upwell.shared.value_classes import value_class

_log = logging.getLogger(__name__)


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
