"""Names for requests that come without one."""

from __future__ import annotations

import random

_AT_ONCE = 64


class Ids:
    """As random UUIDs. Many are made at once: to write one such number takes as long as a whole decision.

    Safe to use from many threads.
    """

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new(self) -> str:
        """One that was not given before."""
        try:
            return self._ready.pop()
        except IndexError:
            id, *self._ready = [f"{random.getrandbits(128):032x}" for _ in range(_AT_ONCE)]
            return id
