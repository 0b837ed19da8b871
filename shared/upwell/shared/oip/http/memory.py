"""What the bodies of requests take of memory together, and who is given up where there is no more."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from upwell.shared.errors import Refused

PATIENCE_S = 2.0
"""Time after which an incoming body may be dropped for others if memory is short."""


class Memory:
    """`size_bytes` for all requests together. Safe to use from many threads.

    A body takes what has come of it, not what its client says that it will be: so who holds memory has sent as much.
    Where a request is refused for want of it, one body is given up that has been coming for `PATIENCE_S`, the oldest of
    the address that holds the most: so clients that send nearly all and then wait do not keep others out.
    """

    def __init__(self, size_bytes: int) -> None:
        self.free_bytes = size_bytes
        self.lock = threading.Lock()
        self.shares: dict[Share, None] = {}  # the oldest first

    def refuse(self) -> NoReturn:
        """Give a slow body up, if there is one, and raise `Refused`."""
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
    """What one request has of it, whose client is at `address`. `break_off` ends its connection, from any thread."""

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
        """Take nothing yet, but raise `Refused` where there would not be so much now."""
        if size_bytes > self._memory.free_bytes:
            self._memory.refuse()

    def take(self, size_bytes: int) -> None:
        """Take so much more, until the end of the request. Raises `Refused` where there is not so much."""
        with self._memory.lock:
            has_room = size_bytes <= self._memory.free_bytes
            if has_room:
                self._hold(size_bytes)
        if not has_room:
            self._memory.refuse()

    def has_come(self) -> None:
        """The body is whole: it is not given up any more."""
        with self._memory.lock:
            self.is_coming = False

    def waits(self, size_bytes: int) -> None:
        """An answer of so many bytes waits for its client, for which it may be given up as a body may. It counts
        whether there is room or not.
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
