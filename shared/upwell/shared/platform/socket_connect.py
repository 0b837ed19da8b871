"""Connections to a host by name or address, over a network interface of choice. No wait outlasts a deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeAlias

Hold: TypeAlias = Callable[[socket.socket], None]
"""Called with each socket before anything waits on it, so that another thread can end the wait. Raises `OSError` if the
connection is no longer wanted."""


def left_s(until_s: float) -> float | None:
    """The seconds left until then (monotonic), None for infinity. Raises `TimeoutError` where there are none."""
    left = until_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return None if left == float("inf") else left


def bind_to_interface(unbound: socket.socket, interface: str) -> None:
    """Have a socket use that network interface alone; without a name the routing table chooses. Raises `OSError`.

    An address of the interface would not do: the routing table would still choose the way out.
    """
    if interface:
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")


_Found: TypeAlias = "list[tuple[Any, ...]]"


_lookups: dict[tuple[str, int], Future[_Found]] = {}
_lookups_lock = threading.Lock()


def _look_up(host: str, port: int, lookup: Future[_Found]) -> None:
    try:
        lookup.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        lookup.set_exception(OSError(f"the name {host!r} has no address: {error}"))
    with _lookups_lock:
        del _lookups[host, port]


def resolve(host: str, port: int, until_s: float) -> _Found:
    """The addresses of a name, as `socket.getaddrinfo` gives them. Raises `OSError`, `TimeoutError` among these."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        pass  # a name, for which the name service may take as long as it likes: a thread of its own waits for it
    with _lookups_lock:
        lookup = _lookups.get((host, port))
        if lookup is None:
            lookup = Future()
            threading.Thread(target=_look_up, args=(host, port, lookup), name="lookup", daemon=True).start()
            _lookups[host, port] = lookup
    if not wait([lookup], left_s(until_s)).done:
        raise TimeoutError("the name service did not answer in time")
    return lookup.result()


def connect(host: str, port: int, until_s: float, hold: Hold, interface: str = "") -> socket.socket:
    """A connection to the first address of a name that can be reached, over a network interface if one is named.

    None may take more than its share of the time. Raises `OSError`, `TimeoutError` among these.
    """
    found = resolve(host, port, until_s)
    problem: OSError = OSError("the name has no address")
    for index, (family, kind, protocol, _, where) in enumerate(found):
        connecting = socket.socket(family, kind, protocol)
        try:
            hold(connecting)
            bind_to_interface(connecting, interface)
            left = left_s(until_s)
            connecting.settimeout(None if left is None else left / (len(found) - index))
            connecting.connect(where)
        except OSError as error:
            connecting.close()
            problem = error
        else:
            return connecting
    raise problem
