"""Threads for gRPC's handlers and for what waits in queues, at a fraction of the standard pool's cost for each task."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from upwell.shared.background_thread import BackgroundThread
from upwell.shared.oip.ended import Ended
from upwell.shared.oip.worker import Task, Worker, here

_TICK_S = 0.01
"""A task that has been at work for so long, and at most twice that, is no longer counted. On a busy machine tasks are
kept from the processor for some milliseconds, and to count one more then costs a tenth of the throughput."""

_CALM_TICKS, _QUIET_S = 20, 1.0

_log = logging.getLogger(__name__)


class CallThreads(ThreadPoolExecutor):
    """At most `max_workers` threads, made when they are needed and gone when not, that run what `submit` is given.

    Only `at_work` of the tasks are at work at once (None: all), for threads that contend for the interpreter's lock
    spend more time on that than on a small request. One that waits is not at work: it says so (`give_way`), or is found
    out within some milliseconds, and the next one begins. So nothing queues here behind what only waits.

    With `poll` one of the threads waits for the events that tasks begin with, and runs such a task itself: for a small
    one a change of threads costs more than all the rest. Another one waits for events as soon as the task waits.

    What a task raises is logged and not kept, for gRPC's tasks handle errors themselves. The threads do not outlive
    the program, however long their tasks take. Single operations on deques and dictionaries need no lock.
    """

    def __init__(self, max_workers: int, name: str, at_work: int | None = None) -> None:
        super().__init__(max_workers)  # makes no threads of its own, for `submit` is ours
        self._most = max_workers
        self._name = name
        self.at_work = at_work
        self._tasks: deque[Task] = deque()
        self._permits: deque[None] = deque([None] * (max_workers if at_work is None else at_work))
        self._parked: deque[Worker] = deque()  # last in, first out: its memory is still in the caches
        self._made: list[Worker] = []
        self._making = threading.Lock()
        self._beginning: dict[Ended, None] = {}
        self._unpolled: deque[None] = deque()  # has an element while a thread is to wait for events, and none does
        self.next_event: Callable[[], bool] = bool
        self._quiet_until_s = 0.0
        self._is_watched = False
        self._is_ending = False
        self._bell: threading.Event | None = None

    @property
    def beginning(self) -> int:
        """How many tasks have been submitted and have not called `begun` yet, nor ended."""
        return len(self._beginning)

    @property
    def is_waited_for(self) -> bool:
        """Whether a task waits for a thread."""
        return bool(self._tasks)

    def submit(self, fn: Callable[..., object], /, *args: Any) -> Ended:  # type: ignore[override]  # no keywords, no result
        """Run `fn` in one of the threads, or as soon as one is free."""
        self._tasks.append((ended := self.expect(), fn, args))
        self.put_to_work()
        return ended

    def expect(self) -> Ended:
        """Count a task that is still to come among those that begin. `begin` or `drop` it."""
        ended = Ended()
        self._beginning[ended] = None
        return ended

    def begin(self, ended: Ended, fn: Callable[..., object], /, *args: Any, is_short: bool = True) -> None:
        """The task that was expected has come: run it as `submit` does, or if short here after its event."""
        self.has_begun(ended)
        worker = here.worker
        if is_short and worker is not None and worker.sees_to_an_event and worker.pool is self:
            worker.ready = (ended, fn, args)
            return
        self._tasks.append((ended, fn, args))
        self.put_to_work()

    def drop(self, ended: Ended) -> None:
        """The task that was expected will not come."""
        self.has_begun(ended)
        ended.end()

    def poll(self, next_event: Callable[[], bool]) -> bool:
        """Have one thread more, and one of all call `next_event` again and again until it is False, once for a pool.

        It waits for an event and sees to it, and tasks `begin` in it. False where the system gives no thread for that.
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
        """There are no more events; a task may have come with the last."""
        self.next_event = bool  # which kept what it was made of
        if last is not None:
            self._tasks.append(last)
            self.put_to_work()
        if self._bell is not None:
            self._bell.set()

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
                    self.watch()
                    return
            if self._wake_or_make():
                return
            self._permits.append(None)  # every thread has a task, and takes the next one when it is done
            if not self._parked:  # not even now
                return

    def _have_polled(self) -> None:
        """Have a thread wait for events, if none does."""
        while self._unpolled:
            try:
                self._unpolled.pop()
            except IndexError:
                return
            if self._wake_or_make(polls=True):
                return
            self._unpolled.append(None)  # every thread has a task, and waits for events when it is done
            if not self._parked:  # not even now
                return

    def _wake_or_make(self, *, polls: bool = False) -> bool:
        """Let a thread go on, with a permit unless it `polls`. False where there is none."""
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
                except RuntimeError as error:  # the system gives no more: those that there are take the task
                    if time.monotonic() >= self._quiet_until_s:
                        self._quiet_until_s = time.monotonic() + _QUIET_S
                        _log.error("no thread beyond %d: %s", len(self._made), error)
                    self.watch()  # it will be tried again
                    return False
                self._made.append(worker)
        return True

    def take(self, worker: Worker) -> Task | None:
        """The next task for a thread with a permit. None where it has to wait for events instead, or is to end."""
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
        """Get a permit for a thread whose own is gone, unless it is to wait for events. False where it is to end."""
        try:
            self._permits.pop()
        except IndexError:
            self._parked.append(worker)
            return self._park(worker)
        return True

    def let_go(self, worker: Worker) -> bool:
        """Whether a thread that has been parked for long may end: somebody might be about to wake it."""
        with self._making:
            try:
                self._parked.remove(worker)
            except ValueError:
                return False
            self._made = [one for one in self._made if one is not worker]
        self.put_to_work()  # what came while it was neither parked nor gone
        self._have_polled()
        return True

    def run_now(self, worker: Worker, task: Task) -> bool:
        """Run a task in the thread that waits for events. Whether that still is this one afterwards."""
        try:
            self._permits.pop()
        except IndexError:  # whoever is at work takes it
            self._tasks.append(task)
            self.put_to_work()
            return True
        if not worker.run(task):
            return False
        self._permits.append(None)
        self.put_to_work()  # what came meanwhile
        return True

    def has_begun(self, ended: Ended) -> None:
        """Whatever the task had to wait for before it could begin has come."""
        self._beginning.pop(ended, None)

    def release(self, worker: Worker) -> None:
        """Take a thread's permit away and let another go on, and another wait for events if it did."""
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
        """Have a parked thread wait for a permit, to poll, or for the end of all. False where it is to end itself."""
        self.put_to_work()  # what came before it was parked
        self._have_polled()
        if self._is_ending:
            self._let_all_go()
        return worker.park()

    def _let_all_go(self) -> None:
        with suppress(IndexError):
            while True:
                self._parked.pop().unpark()

    def watch(self) -> None:
        """Have somebody look after those at work while others, or events, wait for them."""
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
                _log.error("no thread to watch the others: %s", error)
                self._bell, self._is_watched = None, False
                return
        self._bell.set()

    def _keep_watch(self, bell: threading.Event) -> None:
        bell.set()  # after a failure nobody else would ring it
        while not self._is_ending or self.next_event is not bool:
            bell.wait()
            bell.clear()
            seen, calm = dict[Worker, int](), 0
            while calm < _CALM_TICKS:
                time.sleep(_TICK_S)
                calm = 0 if self._tasks or self._unpolled or seen else calm + 1
                for worker, turn in seen.items():
                    if worker.turn == turn and (self._tasks or worker.polls):
                        self.release(worker)
                self._have_polled()  # where the system gave no thread
                self.put_to_work()
                seen = self._those_at_work()
            self._is_watched = False
            self.put_to_work()  # what came before that was seen
            if self._those_at_work():
                self.watch()

    def _those_at_work(self) -> dict[Worker, int]:
        return {worker: worker.turn for worker in self._made if worker.permit}
