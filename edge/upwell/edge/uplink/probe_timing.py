"""When the cloud is asked without a request: a thread that sleeps unless there were recent requests that may leave."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from upwell.shared.platform.background_thread import BackgroundThread


class Prober:
    """A thread that starts with the first allowed call and sleeps unless there were recent requests that may leave.

    While awake it calls `ask`, which returns the seconds until the next time.
    """

    SEEN_S: ClassVar[float] = 10.0
    POLL_S: ClassVar[float] = 0.5

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        self._seen_at_s = -math.inf
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_dormant = False
        self._stopped = False

    def begin(self) -> None:
        """A call that the policy allows begins: from the first one on there may be probes."""
        self._seen_at_s = time.monotonic()
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopped:
                    thread = BackgroundThread("uplink-prober", self._run, lambda: self._stopped)
                    self._thread = thread if thread.try_start() else None
        self._wake()

    def note_candidate(self) -> None:
        """There was a request that may leave."""
        if self._thread is not None:
            self._seen_at_s = time.monotonic()
            self._wake()

    def stop(self) -> None:
        """Start nothing more."""
        with self._lock:
            self._stopped = True
        self._bell.set()

    def join(self) -> None:
        """Wait for the end of the thread, which comes at once if its calls are cancelled."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        if self._is_dormant:
            self._bell.set()

    def _run(self) -> None:
        while not self._stopped:
            self._is_dormant = True  # set before the check, so that a later request wakes the thread
            is_wanted = time.monotonic() - self._seen_at_s < self.SEEN_S
            if is_wanted:
                self._is_dormant = False
            self._bell.wait(self._ask() if is_wanted else None)
            self._bell.clear()
