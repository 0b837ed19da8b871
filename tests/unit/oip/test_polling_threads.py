"""Threads of a pool that wait for the events that their tasks begin with."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from tests.unit.oip.gates import TIMEOUT_S, Gate, assert_ends_after
from upwell.shared.platform.call_threads import CallFuture, CallThreads, goes_on, yield_permit


class Source:
    """Events of which each has a task begin, and of which only one thread at a time may wait for the next."""

    def __init__(self, most: int = 8) -> None:
        self.threads = CallThreads(most, "t", at_work=1)
        self.pollers: set[int] = set()
        self.together = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._events: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self.threads.poll(self._next)

    def come(self, task: Callable[[], object], goes_on: bool = True, is_short: bool = True) -> threading.Event:
        """An event with a task, the last one or not. Gives what is set when the task has ended."""
        ended, expected = threading.Event(), self.threads.expect()
        expected.add_done_callback(lambda _: ended.set())

        def event() -> bool:
            self.threads.begin(expected, task, is_short=is_short)
            return goes_on

        self._events.put(event)
        return ended

    def break_(self) -> None:
        """An event that cannot be understood."""
        self._events.put(lambda: [][0])

    def end(self) -> None:
        """The last event; then the threads are to end."""
        self._events.put(lambda: False)
        self.threads.shutdown()
        for worker in self.threads._made:
            assert not worker.thread.is_alive()

    def _next(self) -> bool:
        with self._lock:
            self._waiting += 1
            self.together = max(self.together, self._waiting)
            self.pollers.add(threading.get_ident())
        event = self._events.get()
        with self._lock:
            self._waiting -= 1
        return event()


@pytest.fixture
def source() -> Source:
    return Source()


def test_short_tasks_run_where_their_events_came(source: Source) -> None:
    ran: list[int] = []
    for _ in range(200):
        assert source.come(lambda: ran.append(threading.get_ident())).wait(TIMEOUT_S)
    assert set(ran) <= source.pollers
    assert len(source.pollers) < 10  # one, unless other programs keep a task from the processor
    source.end()


def test_what_is_not_short_runs_in_another_thread_while_events_are_waited_for(source: Source) -> None:
    ran: list[int] = []
    for _ in range(20):
        assert source.come(lambda: ran.append(threading.get_ident()), is_short=False).wait(TIMEOUT_S)
    assert len(source.pollers) == 1
    assert not source.pollers & set(ran)
    source.end()


def _say_so() -> None:
    yield_permit()


def _say_nothing() -> None:
    pass


@pytest.mark.parametrize("say", [_say_so, _say_nothing])
def test_while_tasks_wait_others_begin(source: Source, say: Callable[[], None]) -> None:
    gate = Gate(say)
    ended = []
    for count in range(1, 10):  # one more than there may be tasks, which gRPC never has
        ended.append(source.come(gate.wait))
        assert gate.reached(), count
    last = source.come(int)  # it waits for a thread, and is not lost
    assert not last.wait(0.05)
    gate.open()
    assert all(one.wait(TIMEOUT_S) for one in [*ended, last])
    assert source.together == 1
    source.end()


def test_what_is_submitted_meanwhile_is_not_kept_waiting(source: Source) -> None:
    for _ in range(3):
        ran = threading.Event()
        source.threads.submit(ran.set)  # while the poller waits for an event that does not come
        assert ran.wait(TIMEOUT_S)
    gate = Gate(_say_nothing)
    ended = source.come(gate.wait)
    assert gate.reached()
    ran = threading.Event()
    source.threads.submit(ran.set)
    assert ran.wait(TIMEOUT_S)
    gate.open()
    assert ended.wait(TIMEOUT_S)
    source.end()


def test_an_event_that_is_not_understood_is_logged_and_the_next_one_waited_for(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        source.break_()
        assert source.come(int).wait(TIMEOUT_S)
    assert "an event could not be handled" in caplog.text
    source.end()


def test_a_task_that_came_with_an_event_that_is_not_understood_runs(source: Source) -> None:
    ran = threading.Event()

    def event() -> bool:
        source.threads.begin(CallFuture(), ran.set)
        raise ValueError

    source._events.put(event)
    assert ran.wait(TIMEOUT_S)
    source.end()


@pytest.mark.parametrize("say", [yield_permit, int], ids=["that waits", "that says nothing"])
def test_a_task_that_a_task_begins_is_not_kept_for_the_next_event(source: Source, say: Callable[[], object]) -> None:
    ran = threading.Event()

    def begin() -> None:
        say()
        source.threads.begin(CallFuture(), ran.set)

    assert source.come(begin).wait(TIMEOUT_S)
    assert ran.wait(TIMEOUT_S)  # though no event comes
    source.end()


def test_a_task_goes_on_while_it_counts_as_at_work(source: Source) -> None:
    went: list[bool] = []

    def go_on() -> None:
        went.append(goes_on())
        yield_permit()
        went.append(goes_on())

    assert source.come(go_on).wait(TIMEOUT_S)
    assert went == [True, False]
    assert not goes_on()  # in a thread of nobody's
    source.end()


def test_a_task_does_not_go_on_while_another_waits(source: Source) -> None:
    went: list[bool] = []
    gate = Gate(_say_nothing)
    other = threading.Event()

    def go_on() -> None:
        gate.wait()
        went.append(goes_on())

    ended = source.come(go_on)
    assert gate.reached()
    source.threads._tasks.append((CallFuture(), other.set, ()))  # as `submit`, and no watch lets it begin meanwhile
    gate.open()
    assert ended.wait(TIMEOUT_S)
    assert other.wait(TIMEOUT_S)
    assert went == [False]
    source.end()


def test_where_the_system_gives_no_more_threads_events_wait_for_the_task(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert source.come(int).wait(TIMEOUT_S)
    gate = Gate()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    while len(source.threads._made) > 1:  # those that wait would do it
        source.end()
        source = Source()
        assert source.come(int).wait(TIMEOUT_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        first = source.come(gate.wait)
        assert gate.reached()
        second = source.come(int)
        assert not second.wait(0.05)
        gate.open()
        assert first.wait(TIMEOUT_S)
        assert second.wait(TIMEOUT_S)
    assert "can't start new thread" in caplog.text
    source.end()


def test_the_end_of_events_while_a_task_waits(source: Source) -> None:
    gate = Gate()
    ended = source.come(gate.wait)
    assert gate.reached()
    assert_ends_after(source.end, gate.open)
    assert ended.is_set()


def test_events_go_on_when_the_threads_are_to_end_before_they_do(source: Source) -> None:
    source.threads.shutdown(wait=False)
    gate = Gate()
    first = source.come(gate.wait)
    assert gate.reached()
    second = source.come(int)
    assert second.wait(TIMEOUT_S)
    gate.open()
    assert first.wait(TIMEOUT_S)
    source.end()


@pytest.mark.parametrize("calm_s", [0.19, 0.195, 0.2, 0.205, 0.21])
def test_a_task_that_says_nothing_is_found_out_when_the_watch_was_about_to_rest(source: Source, calm_s: float) -> None:
    for _ in range(2):
        assert source.come(int).wait(TIMEOUT_S)
        time.sleep(calm_s)
        gate = threading.Event()
        silent = source.come(lambda gate=gate: gate.wait(TIMEOUT_S))  # type: ignore[misc]
        time.sleep(0.001)
        assert source.come(int).wait(TIMEOUT_S / 2)
        gate.set()
        assert silent.wait(TIMEOUT_S)
    source.end()


class _SlowForTheWatch(deque[None]):
    def append(self, one: None) -> None:
        super().append(one)
        if threading.current_thread().name.endswith("-watch"):
            time.sleep(0.05)


def test_a_task_that_ends_while_it_is_found_out_leaves_one_poller_and_the_permit(source: Source) -> None:
    source.threads._permits = _SlowForTheWatch(source.threads._permits)
    for _ in range(3):
        assert source.come(lambda: time.sleep(0.03)).wait(TIMEOUT_S)
        time.sleep(0.1)
        assert all(one.wait(TIMEOUT_S) for one in [source.come(int) for _ in range(10)])
    assert source.together == 1
    source.end()


def test_a_task_that_comes_with_the_last_event_runs_and_none_is_waited_for_after_it(source: Source) -> None:
    assert source.come(yield_permit, goes_on=False).wait(TIMEOUT_S)
    source.threads.shutdown()


class Refusal:
    """A system that gives no more threads of a name, until it is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.is_on = True
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if self.is_on and thread.name.startswith(name):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_thread_that_could_not_be_had_is_tried_for_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.come(int).wait(TIMEOUT_S)
    gate = Gate()
    refusal = Refusal(monkeypatch, "t-")
    first = source.come(gate.wait)
    assert gate.reached()
    refusal.is_on = False
    assert source.come(int).wait(TIMEOUT_S / 2)
    gate.open()
    assert first.wait(TIMEOUT_S)
    source.end()


def test_without_a_thread_to_watch_calls_are_answered(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Refusal(monkeypatch, "t-watch")
    for _ in range(2):
        assert source.come(int).wait(TIMEOUT_S)
    assert "cannot start the monitoring thread" in caplog.text
    source.end()


def test_without_any_thread_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusal(monkeypatch, "t-")
    threads = CallThreads(8, "t", at_work=1)
    assert not threads.poll(lambda: True)


@pytest.mark.parametrize("seed", range(3))
def test_one_thread_waits_for_events_whatever_the_tasks_do(seed: int) -> None:
    dice, source = random.Random(seed), Source(most=16)
    gates = [threading.Event() for _ in range(12)]
    done = threading.Semaphore(0)
    others = 0

    def work(kind: int, gate: threading.Event) -> None:
        if kind == 1:
            yield_permit()
        elif kind == 2:
            yield_permit()
            yield_permit()
            gate.wait(TIMEOUT_S)
        elif kind == 3:
            time.sleep(0.0005)
        done.release()

    ended: list[threading.Event] = []
    for _ in range(3):
        for gate in gates:
            gate.clear()
        waiting = 0
        for number in range(400):
            kind = dice.choice((0, 0, 0, 1, 2, 3))
            if kind == 2 and waiting == len(gates):
                kind = 0
            gate = gates[waiting] if kind == 2 else gates[0]
            waiting += kind == 2
            ended.append(source.come(lambda kind=kind, gate=gate: work(kind, gate)))  # type: ignore[misc]
            if number % 5 == 0:
                others += 1
                source.threads.submit(done.release)
        for gate in gates:
            gate.set()
        assert all(one.wait(TIMEOUT_S) for one in ended)
    for _ in range(len(ended) + others):
        assert done.acquire(timeout=TIMEOUT_S)
    assert source.together == 1
    source.end()
