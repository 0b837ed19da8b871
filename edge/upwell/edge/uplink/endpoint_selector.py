"""Whether the device has moved to another network: its own address towards the cloud is another one."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from upwell.shared.config.security import parse_endpoint
from upwell.shared.platform.dialling import bind_to_interface
from upwell.shared.routing.reasons import Reason

Sources: TypeAlias = tuple[str, ...]

# Addresses that belong to nobody (RFC 5737, RFC 3849): they take the default route.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


def source_addresses(endpoints: Sequence[str], interface: str = "") -> Sources:
    """The device's own addresses on the way to these endpoints, as the routing table has it now, over that interface if
    one is named; "" where no way leads.

    Sends nothing and asks no name server: a UDP socket is connected, which only looks up the route. An endpoint given
    by name counts as somewhere on the default route; one on this machine needs none.
    """
    hosts: dict[str, None] = {}
    for endpoint in endpoints:
        address = parse_endpoint(endpoint)
        if address.socket_path is None and not address.is_loopback:
            hosts.update(dict.fromkeys([address.host] if _is_number(address.host) else _SOMEWHERE))
    return tuple(_source(host, interface) for host in hosts)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _source(host: str, interface: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            bind_to_interface(probe, interface)
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


AT_ONCE = frozenset({Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_CERTIFICATE, Reason.CLOUD_UNAUTHENTICATED})
"""Failures that speak of the endpoint: the next call goes to another. A late answer may be the caller's haste, so it
takes `EndpointSelector.LATE` of them in a row."""


@dataclass(frozen=True, slots=True)
class EndpointSelector:
    """The place in use among `count` endpoints, and when to try the better ones again. A value; time is an argument.

    After a failure the next place is taken, the first after the last, and kept. While another than the first is in use,
    those before it are tried again after `wait_s`, which starts at `FIRST_WAIT_S` and doubles with each try up to
    `LONGEST_WAIT_S`, also with one that succeeds: an endpoint that says that it is ready and then fails again is tried
    ever more seldom, until an answer comes from the first place.
    """

    LATE: ClassVar[int] = 3
    FIRST_WAIT_S: ClassVar[float] = 1.0
    LONGEST_WAIT_S: ClassVar[float] = 30.0

    count: int
    place: int = 0
    late: int = 0
    wait_s: float = FIRST_WAIT_S
    try_at_s: float = 0.0

    def answered(self, place: int) -> EndpointSelector:
        """After an answer from `place`."""
        if place != self.place:
            return self
        return replace(self, late=0, wait_s=self.wait_s if place else self.FIRST_WAIT_S)

    def missed(self, place: int, reason: Reason, now_s: float) -> EndpointSelector:
        """After a failure at `place`; one of a call that was sent before the last move changes nothing."""
        if self.count == 1 or place != self.place:
            return self
        late = self.late + 1 if reason is Reason.CLOUD_DEADLINE else 0
        if reason not in AT_ONCE and late < self.LATE:
            return replace(self, late=late)
        return replace(self, place=(place + 1) % self.count, late=0, try_at_s=now_s + self.wait_s)

    def tried(self, better: int | None, now_s: float) -> EndpointSelector:
        """After the better places were tried: `better` is the first that is ready, or None."""
        wait_s = min(self.LONGEST_WAIT_S, self.wait_s * 2)
        place = self.place if better is None else min(better, self.place)
        return replace(self, place=place, late=0, wait_s=wait_s, try_at_s=now_s + wait_s)

    def after(self, place: int) -> int:
        """A place other than `place`, where there is one: that in use, or the next."""
        return self.place if place != self.place else (place + 1) % self.count
