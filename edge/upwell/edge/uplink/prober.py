"""What is asked of the cloud without a request: how long an empty call takes, and whether a better endpoint is back."""

from __future__ import annotations

import math
import threading
import time
from typing import ClassVar, Protocol

from upwell.shared.platform.background_thread import BackgroundThread


class Probed(Protocol):
    """What the prober needs of the uplink."""

    @property
    def may_ask(self) -> bool:
        """Whether the policy lets the cloud be asked anything now."""

    @property
    def retry_at_s(self) -> float:
        """When the better endpoints are to be tried again."""

    @property
    def wants_probe(self) -> bool:
        """Whether an empty call is worth its bytes."""

    def probe(self, timeout_s: float) -> None:
        """Time an empty call."""

    def try_better(self, timeout_s: float) -> None:
        """Try the better endpoints again."""


class Prober:
    """A thread that lives from the first allowed call on and sleeps unless requests that may leave were seen lately."""

    SEEN_S: ClassVar[float] = 10.0
    LOOK_S: ClassVar[float] = 0.5
    TIMEOUT_S: ClassVar[float] = 2.0

    def __init__(self, uplink: Probed) -> None:
        self._uplink = uplink
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
                    self._thread = BackgroundThread("uplink-prober", self._run, lambda: self._stopped)
                    self._thread.start()
        self._wake()

    def note_candidate(self) -> None:
        """A request was seen that may leave."""
        if self._thread is not None:
            self._seen_at_s = time.monotonic()
            self._wake()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._stopped = True
        self._bell.set()

    def join(self) -> None:
        """Wait for the end of the thread, which is at once where its calls are cancelled."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        if self._is_dormant:
            self._bell.set()

    def _run(self) -> None:
        while not self._stopped:
            self._is_dormant = True  # said before the look, so that who comes after the look rings the bell
            is_wanted = time.monotonic() - self._seen_at_s < self.SEEN_S
            if is_wanted:
                self._is_dormant = False
            self._bell.wait(self._work() if is_wanted else None)
            self._bell.clear()

    def _work(self) -> float:
        """Do what is due and allowed; the seconds until something is due next."""
        if not self._uplink.may_ask:
            return self.LOOK_S
        if time.monotonic() >= self._uplink.retry_at_s:
            self._uplink.try_better(self.TIMEOUT_S)
        if self._uplink.wants_probe:
            self._uplink.probe(self.TIMEOUT_S)
        # Outcomes change what is due: looked at again soon, rather than a bell for each of them.
        return min(self.LOOK_S, max(0.0, self._uplink.retry_at_s - time.monotonic()))
