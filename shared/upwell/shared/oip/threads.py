"""Threads for gRPC's handlers and for what waits in queues, at a fraction of the standard pool's cost for each task."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

_TICK_S = 0.002
"""A task that has been at work for so long, and at most twice that, is no longer counted."""

_CALM_TICKS = 100

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

    Only `at_work` of the tasks are at work at once (None: all), for threads that contend for the interpreter's lock
    spend more time on that than on a small request. One that waits is not at work: it says so (`give_way`), or is found
    out within a few milliseconds, and the next one begins. So nothing queues here behind what only waits.

    What a task raises is logged and not kept, for gRPC's tasks handle errors themselves. The threads do not outlive
    the program, however long their tasks take. Single operations on deques and dictionaries need no lock.
    """

    def __init__(self, max_workers: int, name: str, at_work: int | None = None) -> None:
        super().__init__(max_workers)  # makes no threads of its own, for `submit` is ours
        self._most = max_workers
        self._name = name
        self._tasks: deque[_Task] = deque()
        self._permits: deque[None] = deque([None] * (max_workers if at_work is None else at_work))
        self._parked: deque[_Worker] = (
            deque()
        )  # the last one in is the first one out, whose memory is still in the caches
        self._made: list[_Worker] = []
        self._making = threading.Lock()
        self._beginning: dict[Ended, None] = {}
        self._is_watched = False
        self._is_ending = False
        self._bell: threading.Event | None = None

    @property
    def beginning(self) -> int:
        """How many tasks have been submitted and have not called `begun` yet, nor ended."""
        return len(self._beginning)

    def submit(self, fn: Callable[..., object], /, *args: Any) -> Ended:  # type: ignore[override]  # no keywords, no result
        """Run `fn` in one of the threads, or as soon as one is free."""
        ended = self.expect()
        self._tasks.append((ended, fn, args))
        self.put_to_work()
        return ended

    def expect(self) -> Ended:
        """Count a task that is still to come among those that begin. `begin` or `drop` it."""
        ended = Ended()
        self._beginning[ended] = None
        return ended

    def begin(self, ended: Ended, fn: Callable[..., object], /, *args: Any) -> None:
        """The task that was expected has come: run it as `submit` does."""
        self.has_begun(ended)
        self._tasks.append((ended, fn, args))
        self.put_to_work()

    def drop(self, ended: Ended) -> None:
        """The task that was expected will not come."""
        self.has_begun(ended)
        ended.end()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when they have run what was submitted, and with `wait` return then. Nothing is dropped."""
        del cancel_futures
        self._is_ending = True
        self._let_all_go()
        if self._bell is not None:
            self._bell.set()
        if wait:
            for worker in self._made:
                worker.thread.join()

    def put_to_work(self) -> None:
        """Have a thread take a task that waits, if one more may be at work."""
        while self._tasks:
            try:
                self._permits.pop()
            except IndexError:
                if not self._is_ending:
                    self._watch()
                    return
            if self._wake_or_make():
                return
            self._permits.append(None)  # every thread has a task, and takes the next one when it is done
            if not self._parked:  # not even now
                return

    def _wake_or_make(self) -> bool:
        try:
            self._parked.pop().unpark()
            return True
        except IndexError:
            with self._making:
                if len(self._made) == self._most:
                    return False
                worker = _Worker(self, f"{self._name}-{len(self._made)}")
                try:
                    worker.thread.start()
                except RuntimeError as error:  # the system gives no more: those that there are take the task
                    _log.error("no thread beyond %d: %s", len(self._made), error)
                    return False
                self._made.append(worker)
            return True

    def take(self, worker: _Worker) -> _Task | None:
        """The next task for a thread with a permit, which it may have to wait for; None where there will be no more."""
        while True:
            try:
                return self._tasks.popleft()
            except IndexError:
                if self._is_ending:
                    return None
                self._parked.append(worker)
                self._permits.append(None)
                self.put_to_work()  # what came between the two
                self._park(worker)

    def retake(self, worker: _Worker) -> None:
        """Get a permit for a thread whose own is gone."""
        try:
            self._permits.pop()
        except IndexError:
            self._parked.append(worker)
            self.put_to_work()
            self._park(worker)

    def has_begun(self, ended: Ended) -> None:
        """Whatever the task had to wait for before it could begin has come."""
        self._beginning.pop(ended, None)

    def release(self, worker: _Worker) -> None:
        """Take a thread's permit away and let another go on."""
        try:
            worker.permit.pop()
        except IndexError:
            return
        self._permits.append(None)
        self.put_to_work()

    def _park(self, worker: _Worker) -> None:
        """Have the thread wait until it is given a permit, or the end has come, when none needs one."""
        if self._is_ending:
            self._let_all_go()
        worker.park()

    def _let_all_go(self) -> None:
        while True:
            try:
                self._parked.pop().unpark()
            except IndexError:
                return

    def _watch(self) -> None:
        """Have somebody look after those at work while others wait for them."""
        if self._is_watched:
            return
        self._is_watched = True
        if self._bell is None:
            self._bell = threading.Event()
            threading.Thread(
                target=self._keep_watch, args=(self._bell,), name=f"{self._name}-watch", daemon=True
            ).start()
        self._bell.set()

    def _keep_watch(self, bell: threading.Event) -> None:
        while not self._is_ending:
            bell.wait()
            bell.clear()
            seen: dict[_Worker, int] = {}
            calm = 0
            while calm < _CALM_TICKS:
                time.sleep(_TICK_S)
                calm = 0 if self._tasks else calm + 1
                for worker, turn in seen.items():
                    if worker.turn == turn and self._tasks:
                        self.release(worker)
                seen = {worker: worker.turn for worker in self._made if worker.permit}
            self._is_watched = False
            self.put_to_work()  # what came before that was seen


class _Worker:
    """One of the threads. `permit` has an element while it counts among those at work; `turn` grows with each task."""

    def __init__(self, pool: CallThreads, name: str) -> None:
        self.pool = pool
        self.permit: deque[None] = deque()
        self.turn = 0
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.task: Ended | None = None
        self._parking = threading.Lock()
        self._parking.acquire()

    def park(self) -> None:
        """Wait for `unpark`."""
        self._parking.acquire()

    def unpark(self) -> None:
        """Let the thread go on."""
        self._parking.release()

    def _run(self) -> None:
        _here.worker = self
        pool, permit = self.pool, self.permit
        while (task := pool.take(self)) is not None:
            self.turn += 1
            permit.append(None)
            ended, fn, args = task
            self.task = ended
            try:
                fn(*args)
            except BaseException:  # noqa: BLE001 (whatever a handler raises that gRPC lets through: the thread is still needed)
                _log.exception("a call ended with an error that nobody handled")
            pool.has_begun(ended)
            ended.end()
            self.task = None
            del task, ended, fn, args  # not kept until the next one
            try:
                permit.pop()
            except IndexError:
                pool.retake(self)


class _Here(threading.local):
    worker: _Worker | None = None


_here = _Here()


def give_way() -> None:
    """The task of this thread is about to wait for something: until it ends it does not count as at work."""
    worker = _here.worker
    if worker is not None:
        worker.pool.release(worker)


def begun() -> None:
    """The task of this thread has what it had to wait for before it could begin."""
    worker = _here.worker
    if worker is not None and worker.task is not None:
        worker.pool.has_begun(worker.task)
