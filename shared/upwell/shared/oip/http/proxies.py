"""The proxy that the environment names for https: `HTTPS_PROXY`, and `NO_PROXY` for what is called without it."""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from upwell.shared.config.security import Address
from upwell.shared.errors import ConfigError

_DEFAULT_PORT = 80


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that is asked to CONNECT. `authorization` is the header's value, empty where none is sent."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Without what it is told in confidence."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def proxy_for(address: Address) -> Proxy | None:
    """The proxy on the way to `address`, or None: for this machine, for `http://`, and for what `NO_PROXY` names.

    Raises `ConfigError` for one that cannot be used; its text holds nothing of the URL, which may have a password.
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
    """Whether an entry of `NO_PROXY` means this host: its name, a domain above it, its address or network, or `*`;
    with or without the port.
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
