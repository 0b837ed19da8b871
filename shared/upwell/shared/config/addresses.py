"""Addresses in `agent.yaml` and `cloud.yaml`, checked when the file is loaded."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from upwell.shared.config.security import Address, parse_address, parse_endpoint
from upwell.shared.errors import ConfigError


def _read_by(parse: Callable[[str], Address], *, is_tcp: bool = False) -> AfterValidator:
    def check(text: str) -> str:
        try:
            address = parse(text)
        except ConfigError as error:
            raise ValueError(error.problems[0].message) from None
        if is_tcp and address.socket_path is not None:
            raise ValueError(f"expected HOST:PORT, got {text!r}")
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
