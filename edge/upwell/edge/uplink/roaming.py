"""Whether the device has moved to another network: its own address towards the cloud is another one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import TypeAlias

from upwell.shared.oip.security import parse_endpoint

Sources: TypeAlias = tuple[str, ...]

# Addresses that belong to nobody (RFC 5737, RFC 3849): they take the default route.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


def source_addresses(endpoints: Sequence[str]) -> Sources:
    """The device's own addresses on the way to these endpoints, as the routing table has it now; "" where no way leads.

    Sends nothing and asks no name server: a UDP socket is connected, which only looks up the route. An endpoint given
    by name counts as somewhere on the default route; one on this machine needs none.
    """
    hosts: dict[str, None] = {}
    for endpoint in endpoints:
        address = parse_endpoint(endpoint)
        if address.socket_path is None and not address.is_loopback:
            hosts.update(dict.fromkeys([address.host] if _is_number(address.host) else _SOMEWHERE))
    return tuple(_source(host) for host in hosts)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _source(host: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
