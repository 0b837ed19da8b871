"""The end of a call that runs in a thread of ours."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future


class Ended(Future[None]):
    """What gRPC needs of a submitted call's future: to be told when it has ended. It has no result and no waiting.

    A `Future` makes a condition and several locks, which costs more than a small request's parsing.
    """

    def __init__(self) -> None:
        self._has_ended = False
        self._told: list[Callable[[Future[None]], object]] = []

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call `fn` when the call has ended, or now if it has."""
        self._told.append(fn)
        if self._has_ended:
            self._tell()

    def end(self) -> None:
        """The call has ended."""
        self._has_ended = True
        self._tell()

    def _tell(self) -> None:
        # Both sides may come here at once; `pop` gives each callback to one of them.
        while self._told:
            try:
                told = self._told.pop()
            except IndexError:
                return
            told(self)
