"""Keeps the bundles of an agent up to date, in its own thread."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.update_follower import UpdateFollower
from upwell.shared.platform.background_thread import BackgroundThread

FIRST_WITHIN_S = 300.0
"""Maximum delay of the first check after the start, drawn at random so that a fleet that starts at once does not
check at once. A model without a bundle does not wait.
"""

RETRY_S = 5.0
"""The pause after a failure; it doubles with each further one up to the usual pause, unless more bytes arrived."""

CLOSE_S = 5.0
"""How long `close` waits. What takes longer, such as compiling a model, ends by itself and installs nothing."""

_log = logging.getLogger(__name__)


class UpdatePoller:
    """One thread that checks the sources of all models in turn, each about every `every_s`.

    `draw` gives numbers in [0, 1) for the jitter. Close it; the followers are closed with it.
    """

    def __init__(
        self,
        followers: Sequence[UpdateFollower],
        *,
        retry_s: float = RETRY_S,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._followers = {follower.store.model: follower for follower in followers}
        self._retry_s = retry_s
        self._draw = draw
        self._closing = threading.Event()
        self._hurry = threading.Event()
        self._failures = dict.fromkeys(self._followers, 0)
        now_s = time.monotonic()
        self._due_s = {
            model: now_s + draw() * (min(FIRST_WITHIN_S, follower.updates.every) if follower.has_bundle else 0.0)
            for model, follower in self._followers.items()
        }
        self._thread = BackgroundThread("updates", self._run, self._closing.is_set)
        self._thread.start()

    def look_now(self) -> None:
        """Check every source as soon as possible."""
        self._hurry.set()

    def close(self) -> None:
        """End what is in progress. Calling it twice is harmless."""
        self._closing.set()
        self._hurry.set()
        for follower in self._followers.values():
            follower.close()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while self._followers:
            model = min(self._due_s, key=self._due_s.__getitem__)
            is_hurried = self._hurry.wait(max(0.0, self._due_s[model] - time.monotonic()))
            if self._closing.is_set():
                return
            if is_hurried:
                self._hurry.clear()
                self._due_s = dict.fromkeys(self._due_s, 0.0)
            self._due_s[model] = self._look(self._followers[model]) + time.monotonic()

    def _look(self, follower: UpdateFollower) -> float:
        """Check once; return the time until the next check."""
        model, every_s = follower.store.model, follower.updates.every
        before_bytes, asked_s = follower.fetched_bytes, 0.0
        try:
            follower.look()
        except FetchFailed as error:
            if self._closing.is_set():
                return every_s
            level = logging.DEBUG if self._failures[model] else logging.WARNING
            _log.log(level, "%s: its updates cannot be fetched now: %s", follower.store.subject, error)
            asked_s = error.retry_after_s
        except Exception:  # noqa: BLE001 (the boundary of a thread that must live on)
            _log.exception("%s: updating failed", follower.store.subject)
        else:
            self._failures[model] = 0
            return every_s * (0.9 + 0.2 * self._draw())
        came_on = follower.fetched_bytes > before_bytes
        self._failures[model] = 1 if came_on else self._failures[model] + 1
        pause_s = min(every_s, self._retry_s * 2.0 ** min(self._failures[model] - 1, 60))
        return max(asked_s, pause_s) * (1.0 + 0.5 * self._draw()) if asked_s else pause_s * (0.5 + 0.5 * self._draw())
