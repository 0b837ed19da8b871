"""The memory that request bodies take together, and which of them to drop when it runs out."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from upwell.shared.errors import Refused

PATIENCE_S = 2.0
"""Time after which an incoming body may be dropped if memory is short (seconds)."""


class Memory:
    """`size_bytes` of memory for all requests together. Thread-safe.

    A body takes as much as has come of it, not as much as its client announces: so clients that hold memory have sent
    that much. When a request is refused for lack of memory, one body that has been coming for `PATIENCE_S` is dropped,
    the oldest of the address that holds the most. So clients that send almost everything and then wait do not keep
    others out.
    """

    def __init__(self, size_bytes: int) -> None:
        self.free_bytes = size_bytes
        self.lock = threading.Lock()
        self.shares: dict[Share, None] = {}  # oldest first

    def refuse(self) -> NoReturn:
        """Drop a slow body, if there is one, and raise `Refused`."""
        slow_s = time.monotonic() - PATIENCE_S
        with self.lock:
            held: Counter[str] = Counter()
            for share in self.shares:
                held[share.address] += share.taken_bytes
            slow = [one for one in self.shares if one.is_coming and one.taken_bytes and one.since_s <= slow_s]
            if slow:
                given_up = max(slow, key=lambda one: held[one.address])
                given_up.is_coming = False
                given_up.break_off()
        raise Refused("too many large requests are in progress")


class Share:
    """One request's part of the memory; its client is at `address`. `break_off` ends its connection, from any
    thread."""

    def __init__(self, memory: Memory, address: str, break_off: Callable[[], object]) -> None:
        self.address = address
        self.break_off = break_off
        self.since_s = time.monotonic()
        self.taken_bytes = 0
        self.is_coming = True
        self._memory = memory
        with memory.lock:
            memory.shares[self] = None

    def expect(self, size_bytes: int) -> None:
        """Raise `Refused` if so much memory is not free now; takes nothing."""
        if size_bytes > self._memory.free_bytes:
            self._memory.refuse()

    def take(self, size_bytes: int) -> None:
        """Take memory until the end of the request. Raises `Refused` if it is not free."""
        with self._memory.lock:
            has_room = size_bytes <= self._memory.free_bytes
            if has_room:
                self._hold(size_bytes)
        if not has_room:
            self._memory.refuse()

    def has_come(self) -> None:
        """The body is complete and can no longer be dropped."""
        with self._memory.lock:
            self.is_coming = False

    def waits(self, size_bytes: int) -> None:
        """An answer of this size waits for its client, and can be dropped as a body can. It counts even if it exceeds
        the limit.
        """
        with self._memory.lock:
            self._hold(size_bytes)
            self.since_s, self.is_coming = time.monotonic(), True

    def give_back(self) -> None:
        """The request has ended."""
        with self._memory.lock:
            del self._memory.shares[self]
            self._memory.free_bytes += self.taken_bytes

    def _hold(self, size_bytes: int) -> None:
        self._memory.free_bytes -= size_bytes
        self.taken_bytes += size_bytes
