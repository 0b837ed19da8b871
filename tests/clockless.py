"""The thread that looks for updates, without the thread: how long it would wait, so that a day passes at once."""

from __future__ import annotations

from upwell.edge.updates.update_follower import RETRY_S, UpdateFollower, UpdatePoller


class ClocklessPoller(UpdatePoller):
    """Looks when it is asked to, and says how long it would wait after that."""

    def __init__(self, follower: UpdateFollower, draw: float, *, retry_s: float = RETRY_S) -> None:
        super().__init__([], retry_s=retry_s, draw=lambda: draw)
        self._followers = {follower.store.model: follower}
        self._failures = {follower.store.model: 0}

    def pauses_s(self, count: int) -> list[float]:
        """The pauses after so many looks in a row."""
        return [self._look(next(iter(self._followers.values()))) for _ in range(count)]
