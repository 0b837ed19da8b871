"""What the bodies of requests take of memory together, and who is given up where there is no more."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from upwell.shared.errors import Refused

PATIENCE_S = 2.0
"""A body that has been coming for so long may be given up for others, where memory is short."""


class Share:
    """What one request has of it. `break_off` ends its connection, from any thread."""

    def __init__(self, memory: Memory, address: str, break_off: Callable[[], object]) -> None:
        self.address = address
        self.break_off = break_off
        self.since_s = time.monotonic()
        self.taken_bytes = 0
        self.is_coming = True
        self._memory = memory

    def expect(self, size_bytes: int) -> None:
        """Take nothing yet, but raise `Refused` where there would not be so much now."""
        self._memory.check(size_bytes)

    def take(self, size_bytes: int) -> None:
        """Take so much more, until the end of the request. Raises `Refused` where there is not so much."""
        self._memory.take(self, size_bytes)

    def has_come(self) -> None:
        """The body is whole: it is not given up any more."""
        self._memory.keep(self)

    def waits(self, size_bytes: int) -> None:
        """An answer of so many bytes waits for its client, for which it may be given up as a body may."""
        self._memory.hold(self, size_bytes)


class Memory:
    """`size_bytes` for all requests together. Safe to use from many threads.

    A body takes what has come of it, not what its client says that it will be: so who holds memory has sent as much.
    Where a request is refused for want of it, one body is given up that has been coming for `PATIENCE_S`, the oldest of
    the address that holds the most: so clients that send nearly all and then wait do not keep others out.
    """

    def __init__(self, size_bytes: int) -> None:
        self._free_bytes = size_bytes
        self._lock = threading.Lock()
        self._shares: dict[Share, None] = {}  # the oldest first

    @contextmanager
    def share(self, address: str, break_off: Callable[[], object]) -> Iterator[Share]:
        """For one request, whose client is at `address`; given back at the end."""
        share = Share(self, address, break_off)
        with self._lock:
            self._shares[share] = None
        try:
            yield share
        finally:
            with self._lock:
                del self._shares[share]
                self._free_bytes += share.taken_bytes

    def check(self, size_bytes: int) -> None:
        """Raise `Refused` where there is not so much."""
        if size_bytes > self._free_bytes:
            self._refuse()

    def take(self, share: Share, size_bytes: int) -> None:
        """Let a share have so much more, or raise `Refused`."""
        with self._lock:
            has_room = size_bytes <= self._free_bytes
            if has_room:
                self._free_bytes -= size_bytes
                share.taken_bytes += size_bytes
        if not has_room:
            self._refuse()

    def keep(self, share: Share) -> None:
        """Never give that one up."""
        with self._lock:
            share.is_coming = False

    def hold(self, share: Share, size_bytes: int) -> None:
        """Count so much more of a share, whether there is room or not, and let it be given up."""
        with self._lock:
            self._free_bytes -= size_bytes
            share.taken_bytes += size_bytes
            share.since_s, share.is_coming = time.monotonic(), True

    def _refuse(self) -> None:
        slow_s = time.monotonic() - PATIENCE_S
        with self._lock:
            held: Counter[str] = Counter()
            for share in self._shares:
                held[share.address] += share.taken_bytes
            slow = [one for one in self._shares if one.is_coming and one.taken_bytes and one.since_s <= slow_s]
            if slow:
                given_up = max(slow, key=lambda one: held[one.address])
                given_up.is_coming = False
                given_up.break_off()
        raise Refused("too many large requests are under way")
