"""The environment's proxy for https: `HTTPS_PROXY`, and `NO_PROXY` for hosts called without it."""

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
