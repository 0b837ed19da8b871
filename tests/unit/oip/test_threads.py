"""The threads of gRPC's handlers, and the flag that tells a call's end."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from tests.unit.oip.gates import TIMEOUT_S, Gate, assert_ends_after
from upwell.shared.oip.dataplane import Flag
from upwell.shared.platform import call_threads
from upwell.shared.platform.call_threads import CallFuture, CallThreads, Worker, started, yield_permit


def test_tasks_run_and_tell_their_end() -> None:
    threads = CallThreads(2, "t")
    told = threading.Semaphore(0)
    ran: list[int] = []
    for number in range(50):
        threads.submit(ran.append, number).add_done_callback(lambda _: told.release())
    for _ in range(50):
        assert told.acquire(timeout=TIMEOUT_S)
    assert sorted(ran) == list(range(50))
    threads.shutdown()


def test_no_more_threads_than_needed_and_than_may_be() -> None:
    threads = CallThreads(3, "t")
    for _ in range(5):
        done = threading.Event()
        threads.submit(done.set)
        assert done.wait(TIMEOUT_S)
    gate, at_once = threading.Event(), threading.Semaphore(0)

    def occupy() -> None:
        at_once.release()
        gate.wait(TIMEOUT_S)

    for _ in range(6):
        threads.submit(occupy)
    for _ in range(3):
        assert at_once.acquire(timeout=TIMEOUT_S)
    assert not at_once.acquire(timeout=0.05)
    gate.set()
    threads.shutdown()
    assert at_once.acquire(timeout=0)


def test_threads_are_taken_again() -> None:
    threads = CallThreads(64, "t")
    seen: set[int] = set()
    for _ in range(30):
        done = threading.Event()

        def note(done: threading.Event = done) -> None:
            seen.add(threading.get_ident())
            done.set()

        threads.submit(note)
        assert done.wait(TIMEOUT_S)
    assert len(seen) < 10
    threads.shutdown()


def test_where_the_system_gives_no_more_threads_those_that_there_are_do_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads = CallThreads(8, "t")
    entered, gate, told = threading.Event(), threading.Event(), threading.Semaphore(0)

    def occupy() -> None:
        entered.set()
        gate.wait(TIMEOUT_S)

    threads.submit(occupy)
    assert entered.wait(TIMEOUT_S)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            threads.submit(told.release)
    assert "can't start new thread" in caplog.text
    gate.set()
    for _ in range(3):
        assert told.acquire(timeout=TIMEOUT_S)
    threads.submit(told.release)
    assert told.acquire(timeout=TIMEOUT_S)
    threads.shutdown()


def test_a_task_that_is_expected_counts_until_it_comes_or_does_not() -> None:
    threads = CallThreads(2, "t")
    comes, does_not = threads.expect(), threads.expect()
    assert threads.beginning == 2
    ran, ended = threading.Event(), threading.Semaphore(0)
    for task in (comes, does_not):
        task.add_done_callback(lambda _: ended.release())
    threads.drop(does_not)
    assert ended.acquire(timeout=0)
    threads.begin(comes, ran.set)
    assert ran.wait(TIMEOUT_S)
    assert ended.acquire(timeout=TIMEOUT_S)
    assert threads.beginning == 0
    threads.shutdown()


def test_what_a_task_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    threads = CallThreads(1, "t")

    def fail() -> None:
        raise SystemExit("out")

    told = threading.Event()
    with caplog.at_level(logging.ERROR):
        threads.submit(fail)
        threads.submit(told.set)
        assert told.wait(TIMEOUT_S)
    assert "a call ended with an unhandled error" in caplog.text
    threads.shutdown()


def most_at_work(threads: CallThreads, tasks: int) -> int:
    """How many of so many short tasks are under way together at most."""
    lock, done = threading.Lock(), threading.Semaphore(0)
    at_work, most = 0, 0

    def work() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.0002)
        with lock:
            at_work -= 1
        done.release()

    for _ in range(tasks):
        threads.submit(work)
    for _ in range(tasks):
        assert done.acquire(timeout=TIMEOUT_S)
    return most


def test_only_some_are_at_work_at_once_and_all_get_their_turn() -> None:
    threads = CallThreads(64, "t", at_work=2)
    # Whoever is held up by other programs for longer than the pool waits is no longer counted.
    assert most_at_work(threads, 1000) < 10
    threads.shutdown()


def test_those_that_wait_and_say_so_do_not_hold_others_up() -> None:
    threads = CallThreads(64, "t", at_work=2)
    gate = Gate()
    for _ in range(40):
        threads.submit(gate.wait)
    for _ in range(40):
        assert gate.reached()
    gate.open()
    threads.shutdown()


def test_those_that_wait_and_do_not_say_so_are_found_out() -> None:
    threads = CallThreads(64, "t", at_work=2)
    gate = Gate(say=int)
    for _ in range(40):
        threads.submit(gate.wait)
    for _ in range(40):
        assert gate.reached()
    ran = threading.Event()
    threads.submit(ran.set)
    assert ran.wait(TIMEOUT_S)
    gate.open()
    threads.shutdown()


def test_after_many_have_waited_no_more_are_at_work_than_before() -> None:
    threads = CallThreads(64, "t", at_work=1)
    for _ in range(3):
        gate, waiting = threading.Event(), threading.Semaphore(0)

        def wait(gate: threading.Event = gate, waiting: threading.Semaphore = waiting) -> None:
            yield_permit()
            yield_permit()
            waiting.release()
            gate.wait(TIMEOUT_S)

        for _ in range(20):
            threads.submit(wait)
        for _ in range(20):
            assert waiting.acquire(timeout=TIMEOUT_S)
        gate.set()
    assert most_at_work(threads, 500) < 10
    threads.shutdown()


def test_all_threads_end_although_one_gives_way_meanwhile() -> None:
    threads = CallThreads(8, "ending", at_work=1)
    begun_, gate, at_once = threading.Event(), threading.Event(), threading.Barrier(4)

    def meet() -> None:
        yield_permit()
        at_once.wait(TIMEOUT_S)

    def last() -> None:
        begun_.set()
        gate.wait(TIMEOUT_S)
        yield_permit()

    for _ in range(4):
        threads.submit(meet)
    threads.submit(last)
    assert begun_.wait(TIMEOUT_S)
    for _ in range(3):
        threads.submit(time.sleep, 0.001)  # they wait for the only permit, so that somebody watches
    assert_ends_after(threads.shutdown, gate.set)
    until_s = time.monotonic() + TIMEOUT_S
    while left := [one.name for one in threading.enumerate() if one.name.startswith("ending")]:
        assert time.monotonic() < until_s, left
        time.sleep(0.01)


def test_what_comes_after_the_end_runs_nevertheless() -> None:
    threads = CallThreads(2, "t", at_work=1)
    threads.submit(int)
    threads.shutdown()
    done = threading.Event()
    threads.submit(done.set)
    assert done.wait(TIMEOUT_S)


def test_it_is_known_how_many_have_not_begun() -> None:
    threads = CallThreads(4, "t", at_work=4)
    gate, arrived, told = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        arrived.wait(TIMEOUT_S)
        started()
        told.set()
        gate.wait(TIMEOUT_S)

    threads.submit(call)
    for _ in range(2):
        threads.submit(gate.wait, TIMEOUT_S)
    assert threads.beginning == 3
    arrived.set()
    assert told.wait(TIMEOUT_S)
    assert threads.beginning == 2
    gate.set()
    threads.shutdown()
    assert threads.beginning == 0


def test_outside_of_a_pool_nobody_is_told() -> None:
    started()
    yield_permit()


@pytest.mark.parametrize("at_work", [1, 2, None])
def test_no_task_is_forgotten_whoever_submits(at_work: int | None) -> None:
    threads = CallThreads(8, "t", at_work)
    done = threading.Semaphore(0)

    def task(number: int) -> None:
        if number % 7 == 0:
            yield_permit()
        done.release()

    def submit() -> None:
        for number in range(500):
            threads.submit(task, number)

    submitters = [threading.Thread(target=submit) for _ in range(4)]
    for submitter in submitters:
        submitter.start()
    for _ in range(2000):
        assert done.acquire(timeout=TIMEOUT_S)
    for submitter in submitters:
        submitter.join()
    threads.shutdown()


def test_each_callback_is_called_once_whoever_comes_first() -> None:
    for _ in range(300):
        ended, start = CallFuture(), threading.Barrier(2)
        calls: list[object] = []

        def end(ended: CallFuture = ended, start: threading.Barrier = start) -> None:
            start.wait(TIMEOUT_S)
            ended.end()

        other = threading.Thread(target=end)
        other.start()
        start.wait(TIMEOUT_S)
        ended.add_done_callback(calls.append)
        other.join(TIMEOUT_S)
        assert calls == [ended]


def test_a_flag_is_waited_for() -> None:
    flag = Flag()
    assert not flag.is_set()
    assert not flag.wait(0.001)
    waiting = [threading.Thread(target=flag.wait, args=(TIMEOUT_S,)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    flag.set()
    for thread in waiting:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert flag.is_set()
    assert flag.wait()


def test_no_wait_for_a_flag_misses_it() -> None:
    for _ in range(300):
        flag, start = Flag(), threading.Barrier(2)
        found: list[bool] = []

        def wait(flag: Flag = flag, start: threading.Barrier = start, found: list[bool] = found) -> None:
            start.wait(TIMEOUT_S)
            found.append(flag.wait(TIMEOUT_S))

        other = threading.Thread(target=wait)
        other.start()
        start.wait(TIMEOUT_S)
        flag.set()
        other.join(TIMEOUT_S)
        assert found == [True]


def test_the_threads_of_a_flood_end_and_those_that_are_needed_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_threads, "IDLE_S", 0.2)
    threads = CallThreads(100, "flood")
    for _ in range(3):
        gate, started = threading.Event(), threading.Semaphore(0)
        for _ in range(100):
            threads.submit(_occupy, started, gate)
        for _ in range(100):
            assert started.acquire(timeout=TIMEOUT_S)
        gate.set()
        until_s = time.monotonic() + TIMEOUT_S
        while (left := _named("flood")) > 3 and time.monotonic() < until_s:  # what is needed goes on beside it
            done = threading.Event()
            threads.submit(done.set)
            assert done.wait(TIMEOUT_S)
        assert left <= 3
    threads.shutdown()
    assert _named("flood") == 0


def test_no_task_is_lost_while_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two come at about the time at which one of two threads, parked for long enough, is about to end."""
    monkeypatch.setattr(call_threads, "IDLE_S", 0.002)
    threads = CallThreads(2, "ending")
    for turn in range(400):
        both = [threading.Event(), threading.Event()]
        for done in both:
            threads.submit(done.set)
        assert all(done.wait(TIMEOUT_S) for done in both)
        time.sleep(0.0015 + 0.000005 * (turn % 200))
    threads.shutdown()


def test_the_last_thread_stays_where_the_system_gives_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, let_go = threading.Semaphore(0), CallThreads.let_go

    def ask(threads: CallThreads, worker: Worker) -> bool:
        ends = let_go(threads, worker)
        asked.release()
        return ends

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start {thread.name}")

    monkeypatch.setattr(call_threads, "IDLE_S", 0.002)
    monkeypatch.setattr(CallThreads, "let_go", ask)
    threads = CallThreads(8, "last")
    threads.submit(int)
    assert all(asked.acquire(timeout=TIMEOUT_S) for _ in range(3))  # long parked
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = threading.Event()
    threads.submit(done.set)
    assert done.wait(TIMEOUT_S)
    threads.shutdown()
    assert _named("last") == 0


def _occupy(entered: threading.Semaphore, gate: threading.Event) -> None:
    entered.release()
    gate.wait(TIMEOUT_S)


def _named(name: str) -> int:
    return sum(one.name.startswith(f"{name}-") and not one.name.endswith("-watch") for one in threading.enumerate())
