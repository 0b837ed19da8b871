"""A pool of threads for gRPC calls, which limits how many calls use the interpreter at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from upwell.shared.platform.background_thread import BackgroundThread

_AFTER_ERROR_S = 0.01
"""Pause after an error, so that a repeated one neither uses the CPU nor fills the log."""

IDLE_S = 10.0
"""Idle time after which a thread ends: a burst leaves many threads, each with its own memory."""

Task: TypeAlias = "tuple[CallFuture, Callable[..., object], tuple[Any, ...]]"
_TICK_S = 0.01
"""A running task stops counting as active after one to two ticks. On a busy machine tasks wait some milliseconds for
the CPU, and one more active task then costs a tenth of the throughput."""

_CALM_TICKS, _QUIET_S = 20, 1.0
_log = logging.getLogger(__name__)


class CallFuture(Future[None]):
    """What gRPC needs of a submitted call's future: a callback at its end. It has no result and cannot be waited for.

    A real `Future` creates a condition and several locks, which costs more than parsing a small request.
    """

    def __init__(self) -> None:
        self._has_ended = False
        self._callbacks: list[Callable[[Future[None]], object]] = []

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call `fn` when the call has ended, or now if it has."""
        self._callbacks.append(fn)
        if self._has_ended:
            self._tell()

    def end(self) -> None:
        """Mark the call as ended."""
        self._has_ended = True
        self._tell()

    def _tell(self) -> None:
        # Two threads may run this at once; `pop` gives each callback to one of them.
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class Worker:
    """A thread of the pool. `permit` has one element while the thread counts as active; `task_count` grows with each
    task.

    One thread `polls`: it waits for events, or runs the task of an event, its `ready`. The element of `permit` then is
    True, and whoever takes it away must let another thread poll. `polls` is set by the code that wakes a parked thread,
    and otherwise by the thread itself.
    """

    def __init__(self, pool: CallThreads, name: str, polls: bool) -> None:
        self.pool = pool
        self.polls = polls
        self.ready: Task | None = None
        self.permit: deque[bool] = deque()
        self.task_count = 0
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.task: CallFuture | None = None
        self._parking = threading.Lock()
        self._parking.acquire()

    def park(self) -> bool:
        """Wait for `unpark`. False if none came for long and the pool lets the thread end."""
        while not self._parking.acquire(timeout=IDLE_S):
            if self.pool.let_go(self):
                return False
        return True

    def unpark(self) -> None:
        """Wake the thread."""
        self._parking.release()

    @property
    def sees_to_an_event(self) -> bool:
        """Whether the thread handles an event and can run the task that comes with it."""
        return self.polls and self.task is None and self.ready is None

    def _work(self) -> None:
        here.worker = self
        pool = self.pool
        while True:
            if self.polls:
                self._poll()
                if not pool.retake(self):
                    return
            elif (task := pool.take(self)) is not None:
                if not self.run(task) and not pool.retake(self):
                    return
                del task  # do not keep it until the next one
            elif not self.polls:
                return

    def _poll(self) -> None:
        """Wait for events and run their tasks, until another thread polls or there are no more events."""
        pool = self.pool
        while True:
            try:
                goes_on = pool.next_event()
            except Exception:  # noqa: BLE001 (nothing else would wait for the next event)
                _log.exception("an event could not be handled")
                goes_on = True  # keep the task that may have come with it
                time.sleep(_AFTER_ERROR_S)
            task, self.ready = self.ready, None
            if not goes_on:
                self.polls = False
                pool.end_polling(task)
                return
            if task is not None and not pool.run_now(self, task):
                self.polls = False
                return
            del task

    def run(self, task: Task) -> bool:
        """Run a task with a permit; returns whether the thread still has it."""
        self.task_count += 1
        self.permit.append(self.polls)
        if self.polls:
            self.pool.watch()
        ended, fn, args = task
        self.task = ended
        try:
            fn(*args)
        except BaseException:  # noqa: BLE001 (whatever gRPC lets through, the thread is still needed)
            _log.exception("a call ended with an unhandled error")
        self.pool.has_begun(ended)
        ended.end()
        self.task = None
        try:
            self.permit.pop()
            return True
        except IndexError:
            return False


class Here(threading.local):
    """The worker that runs in this thread, or None."""

    worker: Worker | None = None


here = Here()


def yield_permit() -> None:
    """Call before this thread's task waits for something: until it ends, it no longer counts as active."""
    worker = here.worker
    if worker is not None:
        worker.pool.release(worker)


def started() -> None:
    """Call when this thread's task has what it waited for before it could begin."""
    worker = here.worker
    if worker is not None and worker.task is not None:
        worker.pool.has_begun(worker.task)


def goes_on() -> bool:
    """Whether this thread's task may go on with another piece of work, which then counts as a new task: it must still
    count as active, and no other task may wait.
    """
    worker = here.worker
    if worker is None or not worker.permit or worker.pool.is_waited_for:
        return False
    worker.task_count += 1
    return True


class CallThreads(ThreadPoolExecutor):
    """A pool of at most `max_workers` threads, created on demand, for the tasks given to `submit`. Idle ones end,
    but for the last.

    Only `at_work` tasks are active at once (None: all), since threads that contend for the GIL spend more time on that
    than on a small request. A task that waits is not active: it says so (`yield_permit`), or the monitoring thread
    notices within some milliseconds, and the next task begins. So no task queues behind one that only waits.

    With `poll` one of the threads waits for the events with which tasks begin, and runs small tasks itself, since a
    thread switch costs more than the rest of them. Another thread polls as soon as that task waits.

    Exceptions of tasks are logged and dropped, since gRPC's tasks handle errors themselves. The threads are daemons,
    however long their tasks take. Single operations on deques and dictionaries need no lock.
    """

    def __init__(self, max_workers: int, name: str, at_work: int | None = None) -> None:
        super().__init__(max_workers)  # starts no threads, since `submit` is overridden
        self._most = max_workers
        self._name = name
        self.at_work = at_work
        self._tasks: deque[Task] = deque()
        self._permits: deque[None] = deque([None] * (max_workers if at_work is None else at_work))
        self._parked: deque[Worker] = deque()  # last in, first out: its memory is still in the caches
        self._made: list[Worker] = []
        self._making = threading.Lock()
        self._beginning: dict[CallFuture, None] = {}
        self._unpolled: deque[None] = deque()  # has an element while a thread must poll and none does
        self.next_event: Callable[[], bool] = bool
        self._quiet_until_s = 0.0
        self._is_watched = False
        self._is_ending = False
        self._bell: threading.Event | None = None

    @property
    def beginning(self) -> int:
        """Number of tasks that were submitted and have neither called `started` nor ended."""
        return len(self._beginning)

    @property
    def is_waited_for(self) -> bool:
        """Whether a task waits for a thread."""
        return bool(self._tasks)

    def submit(self, fn: Callable[..., object], /, *args: Any) -> CallFuture:  # type: ignore[override]  # no keywords, no result
        """Run `fn` in one of the threads, as soon as one is free."""
        self._tasks.append((ended := self.expect(), fn, args))
        self.put_to_work()
        return ended

    def expect(self) -> CallFuture:
        """Announce a task that is still to come; it counts as beginning. Follow with `begin` or `drop`."""
        ended = CallFuture()
        self._beginning[ended] = None
        return ended

    def begin(self, ended: CallFuture, fn: Callable[..., object], /, *args: Any, is_short: bool = True) -> None:
        """Run an announced task: in this thread after its event if it is short, else as `submit` does."""
        self.has_begun(ended)
        worker = here.worker
        if is_short and worker is not None and worker.sees_to_an_event and worker.pool is self:
            worker.ready = (ended, fn, args)
            return
        self._tasks.append((ended, fn, args))
        self.put_to_work()

    def drop(self, ended: CallFuture) -> None:
        """Withdraw an announced task."""
        self.has_begun(ended)
        ended.end()

    def poll(self, next_event: Callable[[], bool]) -> bool:
        """Add a thread, and let one thread at a time call `next_event` until it returns False. Once per pool.

        `next_event` waits for an event and handles it, and may `begin` tasks. Returns False if no thread can be
        started.
        """
        self._most += 1
        self.next_event = next_event
        self._unpolled.append(None)
        self._have_polled()
        try:
            self._unpolled.pop()
        except IndexError:
            return True
        self.next_event = bool
        return False

    def end_polling(self, last: Task | None) -> None:
        """Stop polling; a task may have come with the last event."""
        self.next_event = bool  # release what the function refers to
        if last is not None:
            self._tasks.append(last)
            self.put_to_work()
        if self._bell is not None:
            self._bell.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the submitted tasks; with `wait` return only then. No task is dropped."""
        del cancel_futures
        self._is_ending = True
        self._let_all_go()
        if self._bell is not None:
            self._bell.set()
        if wait:
            for worker in self._made:
                worker.thread.join()

    def put_to_work(self) -> None:
        """Let a thread take a waiting task, if another may be active."""
        while self._tasks:
            try:
                self._permits.pop()
            except IndexError:
                if not self._is_ending:
                    self.watch()
                    return
            if self._wake_or_make():
                return
            self._permits.append(None)  # all threads are busy; one takes the task when it is done
            if not self._parked:  # still none
                return

    def _have_polled(self) -> None:
        """Let a thread poll, if none does."""
        while self._unpolled:
            try:
                self._unpolled.pop()
            except IndexError:
                return
            if self._wake_or_make(polls=True):
                return
            self._unpolled.append(None)  # all threads are busy; one polls when it is done
            if not self._parked:  # still none
                return

    def _wake_or_make(self, *, polls: bool = False) -> bool:
        """Wake or start a thread, with a permit unless it `polls`. False if there is none."""
        try:
            worker = self._parked.pop()
            worker.polls = polls
            worker.unpark()
        except IndexError:
            with self._making:
                if len(self._made) == self._most and self._is_ending:
                    self._made = [one for one in self._made if one.thread.is_alive()]
                if len(self._made) == self._most:
                    return False
                worker = Worker(self, f"{self._name}-{len(self._made)}", polls)
                try:
                    worker.thread.start()
                except RuntimeError as error:  # the system allows no more threads: the existing ones take the task
                    if time.monotonic() >= self._quiet_until_s:
                        self._quiet_until_s = time.monotonic() + _QUIET_S
                        _log.error("cannot start more than %d threads: %s", len(self._made), error)
                    self.watch()  # to try again later
                    return False
                self._made.append(worker)
        return True

    def take(self, worker: Worker) -> Task | None:
        """The next task for a thread with a permit. None if the thread must poll instead, or end."""
        while not worker.polls:
            try:
                return self._tasks.popleft()
            except IndexError:
                if self._is_ending and not self._unpolled:
                    self._permits.append(None)
                    return None
                self._parked.append(worker)
                self._permits.append(None)
                if not self._park(worker):
                    return None
        return None

    def retake(self, worker: Worker) -> bool:
        """Get a permit for a thread that lost its own, unless it must poll. False if the thread must end."""
        try:
            self._permits.pop()
        except IndexError:
            self._parked.append(worker)
            return self._park(worker)
        return True

    def let_go(self, worker: Worker) -> bool:
        """Whether a thread that was parked for long may end; False if another is about to wake it.

        The last one stays, since under load the system may allow no other.
        """
        with self._making:
            if len(self._made) == 1:
                return False
            try:
                self._parked.remove(worker)
            except ValueError:
                return False
            self._made = [one for one in self._made if one is not worker]
        self.put_to_work()  # tasks that came while it was neither parked nor gone
        self._have_polled()
        return True

    def run_now(self, worker: Worker, task: Task) -> bool:
        """Run a task in the polling thread; returns whether it still is the polling thread."""
        try:
            self._permits.pop()
        except IndexError:  # an active thread will take it
            self._tasks.append(task)
            self.put_to_work()
            return True
        if not worker.run(task):
            return False
        self._permits.append(None)
        self.put_to_work()  # tasks that came meanwhile
        return True

    def has_begun(self, ended: CallFuture) -> None:
        """Stop counting a task as beginning."""
        self._beginning.pop(ended, None)

    def release(self, worker: Worker) -> None:
        """Take a thread's permit away and wake another; if the thread polled, let another poll."""
        try:
            polled = worker.permit.pop()
        except IndexError:
            return
        self._permits.append(None)
        if polled:
            self._unpolled.append(None)
            self._have_polled()
        self.put_to_work()

    def _park(self, worker: Worker) -> bool:
        """Park a thread until it gets a permit, must poll, or the pool ends. False if the thread must end."""
        self.put_to_work()  # tasks that came before it was parked
        self._have_polled()
        if self._is_ending:
            self._let_all_go()
        return worker.park()

    def _let_all_go(self) -> None:
        with suppress(IndexError):
            while True:
                self._parked.pop().unpark()

    def watch(self) -> None:
        """Start monitoring the active tasks while other tasks or events wait for them."""
        if self._is_watched:
            return
        self._is_watched = True
        if self._bell is None:
            self._bell = threading.Event()
            name = f"{self._name}-watch"
            kept = BackgroundThread(name, partial(self._keep_watch, self._bell))
            try:
                kept.start()
            except RuntimeError as error:
                _log.error("cannot start the monitoring thread: %s", error)
                self._bell, self._is_watched = None, False
                return
        self._bell.set()

    def _keep_watch(self, bell: threading.Event) -> None:
        bell.set()  # after a failure nothing else would set it
        while not self._is_ending or self.next_event is not bool:
            bell.wait()
            bell.clear()
            seen, calm = dict[Worker, int](), 0
            while calm < _CALM_TICKS:
                time.sleep(_TICK_S)
                calm = 0 if self._tasks or self._unpolled or seen else calm + 1
                for worker, task_count in seen.items():
                    if worker.task_count == task_count and (self._tasks or worker.polls):
                        self.release(worker)
                self._have_polled()  # if no thread could be started before
                self.put_to_work()
                seen = self._those_at_work()
            self._is_watched = False
            self.put_to_work()  # tasks that came before the flag was cleared
            if self._those_at_work():
                self.watch()

    def _those_at_work(self) -> dict[Worker, int]:
        return {worker: worker.task_count for worker in self._made if worker.permit}
