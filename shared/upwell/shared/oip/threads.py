"""The threads that gRPC's server runs its handlers in, at a fraction of the standard pool's cost for each call."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

_log = logging.getLogger(__name__)
_Task: TypeAlias = "tuple[Ended, Callable[..., object], tuple[Any, ...]]"


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


class CallThreads(ThreadPoolExecutor):
    """At most `max_workers` threads, made when they are needed, that run what `submit` is given.

    What a task raises is logged and not kept, for gRPC's tasks handle errors themselves. The threads do not outlive
    the program, however long their tasks take.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        super().__init__(max_workers)  # makes no threads of its own, for `submit` is ours
        self._most = max_workers
        self._name = name
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._idle: deque[None] = deque()  # one element for each thread without a task
        self._making = threading.Lock()
        self._made: list[threading.Thread] = []

    def submit(self, fn: Callable[..., object], /, *args: Any) -> Ended:  # type: ignore[override]  # no keywords, no result
        """Run `fn` in one of the threads, or as soon as one is free."""
        ended = Ended()
        self._tasks.put((ended, fn, args))
        try:
            self._idle.pop()
        except IndexError:
            self._make_one()
        return ended

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when they have run what was submitted, and with `wait` return then. Nothing is dropped."""
        del cancel_futures
        for _ in self._made:
            self._tasks.put(None)
        if wait:
            for thread in self._made:
                thread.join()

    def _make_one(self) -> None:
        with self._making:
            if len(self._made) < self._most:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._made)}", daemon=True)
                self._made.append(thread)
                thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            ended, fn, args = task
            try:
                fn(*args)
            except BaseException:  # noqa: BLE001 (whatever a handler raises that gRPC lets through: the thread is still needed)
                _log.exception("a call ended with an error that nobody handled")
            ended.end()
            del task, ended, fn, args  # not kept until the next one
            self._idle.append(None)
