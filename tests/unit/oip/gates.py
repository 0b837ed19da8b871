"""Tasks that wait until they may go on, and what is not to end before they do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from upwell.shared.platform.call_threads import yield_permit

TIMEOUT_S = 10.0


class Gate:
    """Where any number of tasks wait until it is opened. Each calls `say` first: most give way."""

    def __init__(self, say: Callable[[], object] = yield_permit) -> None:
        self._say = say
        self._opened = threading.Event()
        self._reached = threading.Semaphore(0)

    def wait(self) -> None:
        """The task."""
        self._say()
        self._reached.release()
        self._opened.wait(TIMEOUT_S)

    def reached(self) -> bool:
        """Wait for one more task to have come here; whether it did in time."""
        return self._reached.acquire(timeout=TIMEOUT_S)

    def open(self) -> None:
        """Let those that wait go on, and those that come."""
        self._opened.set()


def assert_ends_after(end: Callable[[], object], release: Callable[[], object]) -> None:
    """What `end` does is not over before `release` is called, and is then."""
    stopping = threading.Thread(target=end)
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive()
    release()
    stopping.join(TIMEOUT_S)
    assert not stopping.is_alive()
