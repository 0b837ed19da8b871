"""The scheduler of the device: callers' threads run in the order of the queue."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue

from upwell.shared.routing.scheduling.run_queue import QueuedRun, RunQueue
from upwell.shared.routing.scheduling.run_request import RunRequest

_UNKNOWN = RunRequest()


class RunWithdrawn(Exception):
    """There was news while the run waited for its turn. Nothing was run."""


class _ThreadRun(QueuedRun):
    """The run of a thread. As a context manager it waits for a slot and gives it back."""

    __slots__ = ("_gate", "_news", "_scheduler")

    def __init__(
        self, scheduler: EdfScheduler, deadline_s: float, run_request: RunRequest, news: SimpleQueue[bool] | None
    ) -> None:
        QueuedRun.__init__(self, deadline_s, run_request)
        self._scheduler, self._news = scheduler, news

    def queue(self) -> None:
        self._gate: SimpleQueue[bool] = SimpleQueue() if self._news is None else self._news

    def wake(self) -> None:
        self._gate.put(False)

    def __enter__(self) -> None:
        scheduler = self._scheduler
        try:
            with scheduler.lock:
                if scheduler.queue.join(self, time.monotonic(), threading.get_ident()):
                    return
            timeout_s = min(max(0.0, self.latest_start_s - time.monotonic()), threading.TIMEOUT_MAX)
            try:
                self._gate.get(timeout=timeout_s)
            except Empty:  # a slot granted at this very moment is passed on
                raise (self.error or self.late_error()) from None
            if self.error is not None:
                raise self.error
            if math.isnan(self.began_s):
                raise RunWithdrawn
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        scheduler = self._scheduler
        with scheduler.lock:
            scheduler.queue.leave(self, time.monotonic())


class EdfScheduler:
    """Runs models in the callers' own threads, in the order of a `RunQueue`; checking and joining are one step."""

    def __init__(self, instances: int = 1) -> None:
        self.queue = RunQueue(instances)
        self.lock = threading.Lock()
        """Held whenever more than one value of the queue is read."""

    def resize(self, instances: int) -> None:
        """See `RunQueue`."""
        with self.lock:
            self.queue.resize(instances, time.monotonic())

    def ahead_of(self, deadline_s: float, run_request: RunRequest) -> int:
        """See `RunQueue`."""
        with self.lock:
            return self.queue.ahead_of(deadline_s, run_request)

    def acquire(
        self, deadline_s: float, run_request: RunRequest = _UNKNOWN, news: SimpleQueue[bool] | None = None
    ) -> AbstractContextManager[None]:
        """Take a place in the queue for a run that must end by `deadline_s`.

        Entering it raises `Refused`, at once if that is impossible, or later if a request of higher priority takes the
        place; `Superseded` if a newer request of the same stream does; and `DeadlineExceeded` if earlier runs took so
        much longer than predicted that this one would be late. In all these cases nothing was run.

        Anything put into `news` ends the wait with `RunWithdrawn`. It may get an item more when the turn comes.
        """
        return _ThreadRun(self, deadline_s, run_request, news)

    @contextmanager
    def reserve(self, start_s: float, end_s: float) -> Iterator[float]:
        """Reserve a slot as `RunQueue.reserve` does, and yield the time at which the run must begin.

        The run itself has `is_owed` set and is requested by the same thread within the context.
        """
        with self.lock:
            slot = self.queue.reserve(start_s, end_s, threading.get_ident())
        try:
            yield slot.ready_s
        finally:
            with self.lock:
                self.queue.release(slot, time.monotonic())
