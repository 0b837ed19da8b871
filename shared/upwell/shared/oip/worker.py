"""A thread of a pool of `CallThreads`, and what a task tells its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from upwell.shared.oip.ended import Ended

if TYPE_CHECKING:
    from upwell.shared.oip.threads import CallThreads

_log = logging.getLogger(__name__)
_AFTER_ERROR_S = 0.01
"""So that one that comes again and again neither takes the processor nor fills the log."""

IDLE_S = 10.0
"""A thread with nothing to do for so long ends: a flood leaves as many as there may be, each with memory of its own."""

Task: TypeAlias = "tuple[Ended, Callable[..., object], tuple[Any, ...]]"


class Worker:
    """One of the threads. `permit` has an element while it counts among those at work; `turn` grows with each task.

    While it `polls` it is the one that waits for events, or runs the task that came with one, which is its `ready`.
    Then the permit says so: whoever takes that away, has another thread wait for events. `polls` is set by whoever
    wakes a parked thread, and else by the thread alone.
    """

    def __init__(self, pool: CallThreads, name: str, polls: bool) -> None:
        self.pool = pool
        self.polls = polls
        self.ready: Task | None = None
        self.permit: deque[bool] = deque()
        self.turn = 0
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.task: Ended | None = None
        self._parking = threading.Lock()
        self._parking.acquire()

    def park(self) -> bool:
        """Wait for `unpark`. False where none has come for long and the pool goes on without this thread."""
        while not self._parking.acquire(timeout=IDLE_S):
            if self.pool.let_go(self):
                return False
        return True

    def unpark(self) -> None:
        """Let the thread go on."""
        self._parking.release()

    @property
    def sees_to_an_event(self) -> bool:
        """Whether it does, and is free to run the task that comes with it."""
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
                del task  # not kept until the next one
            elif not self.polls:
                return

    def _poll(self) -> None:
        """Wait for events and run what begins with them, until that is another's or over."""
        pool = self.pool
        while True:
            try:
                goes_on = pool.next_event()
            except Exception:  # noqa: BLE001 (nobody else would wait for the next one)
                _log.exception("an event was not understood")
                goes_on = True  # with the task that may have come with it
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
        """Run a task with a permit. Whether the thread still has it."""
        self.turn += 1
        self.permit.append(self.polls)
        if self.polls:
            self.pool.watch()
        ended, fn, args = task
        self.task = ended
        try:
            fn(*args)
        except BaseException:  # noqa: BLE001 (whatever a handler raises that gRPC lets through: the thread is still needed)
            _log.exception("a call ended with an error that nobody handled")
        self.pool.has_begun(ended)
        ended.end()
        self.task = None
        try:
            self.permit.pop()
            return True
        except IndexError:
            return False


class Here(threading.local):
    """The worker whose thread this is, or None."""

    worker: Worker | None = None


here = Here()


def give_way() -> None:
    """The task of this thread is about to wait for something: until it ends it does not count as at work."""
    worker = here.worker
    if worker is not None:
        worker.pool.release(worker)


def begun() -> None:
    """The task of this thread has what it had to wait for before it could begin."""
    worker = here.worker
    if worker is not None and worker.task is not None:
        worker.pool.has_begun(worker.task)


def goes_on() -> bool:
    """Whether the task of this thread may go on with another piece of work, which counts as a task that begins now:
    it counts as at work, and no other task waits.
    """
    worker = here.worker
    if worker is None or not worker.permit or worker.pool.is_waited_for:
        return False
    worker.turn += 1
    return True
