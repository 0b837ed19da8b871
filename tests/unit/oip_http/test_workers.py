from __future__ import annotations

import sys
import threading
import time

import pytest

from upwell.shared.oip.http import workers as module
from upwell.shared.oip.http.workers import Workers

TIMEOUT_S = 10.0


class Job:
    """Waits until it is let go."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.closed = threading.Event()
        self._failure = failure

    def serve_once(self) -> None:
        self.begun.set()
        assert self.may_end.wait(TIMEOUT_S)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self.closed.set()

    def address(self) -> str:
        return "192.0.2.1"

    def break_off(self) -> None:
        self.may_end.set()


def test_each_job_has_a_thread_up_to_the_count_then_they_wait_and_then_they_are_closed() -> None:
    workers = Workers(2, max_waiting=2)
    jobs = [Job() for _ in range(5)]
    for job in jobs[:2]:
        workers.put(job)
        assert job.begun.wait(TIMEOUT_S)
    for job in jobs[2:]:
        workers.put(job)
    assert workers.has_waiting()
    assert [job.closed.is_set() for job in jobs] == [False, False, False, False, True]
    for job in jobs:
        job.may_end.set()
    assert workers.stop(TIMEOUT_S)
    assert [job.begun.is_set() for job in jobs] == [True, True, True, True, False]


def test_jobs_at_once_do_not_wait_for_each_other() -> None:
    """The thread that has just been woken for the first is not there for the second."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet wherever they can
    try:
        for _ in range(300):
            workers = Workers(4, max_waiting=8)
            jobs = [Job() for _ in range(4)]
            jobs[0].may_end.set()
            workers.put(jobs[0])
            for job in jobs[1:]:
                workers.put(job)
            is_served = [job.begun.wait(1.0) for job in jobs]
            for job in jobs:
                job.may_end.set()
            assert workers.stop(TIMEOUT_S)
            assert all(is_served)
    finally:
        sys.setswitchinterval(interval_s)


def test_a_job_that_fails_is_closed_and_its_thread_goes_on() -> None:
    workers = Workers(1, max_waiting=2)
    failing, next_one = Job(KeyError("x")), Job()
    for job in (failing, next_one):
        job.may_end.set()
        workers.put(job)
    assert next_one.begun.wait(TIMEOUT_S)
    assert failing.closed.is_set()
    assert workers.stop(TIMEOUT_S)


def test_a_job_that_does_not_end_is_told_of() -> None:
    workers = Workers(1, max_waiting=1)
    job = Job()
    workers.put(job)
    assert job.begun.wait(TIMEOUT_S)
    assert not workers.stop(0.0)
    job.may_end.set()
    assert workers.join(TIMEOUT_S)


def test_the_threads_of_a_flood_end_though_all_are_used_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.1)
    pool = Workers(60, max_waiting=100)
    for _ in range(2):
        jobs = [Job() for _ in range(60)]
        for job in jobs:
            pool.put(job)
        assert all(job.begun.wait(TIMEOUT_S) for job in jobs)
        for job in jobs:
            job.may_end.set()
        until_s = time.monotonic() + TIMEOUT_S
        while (left := len(pool._threads)) > 4 and time.monotonic() < until_s:
            one = Job()
            one.may_end.set()
            pool.put(one)
            assert one.begun.wait(TIMEOUT_S)
        assert left <= 4
        assert sum(one.name.startswith("http-") for one in threading.enumerate()) <= 10  # some are on their way out
    assert pool.stop(TIMEOUT_S)


def test_a_connection_that_waited_leaves_no_thread_counted_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    pool = Workers(2, max_waiting=10)
    for _ in range(5):
        jobs = [Job() for _ in range(6)]
        for job in jobs:
            pool.put(job)
            job.may_end.set()
        assert all(job.begun.wait(TIMEOUT_S) for job in jobs)
    until_s = time.monotonic() + TIMEOUT_S
    while pool._threads and time.monotonic() < until_s:
        time.sleep(0.01)
    assert pool._threads == []
    both = [Job(), Job()]
    for job in both:
        pool.put(job)
    assert all(job.begun.wait(TIMEOUT_S) for job in both)  # each has a thread
    for job in both:
        job.may_end.set()
    assert pool.stop(TIMEOUT_S)


def test_no_connection_is_lost_while_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.002)
    pool = Workers(3, max_waiting=10)
    for turn in range(300):
        jobs = [Job(), Job()]
        for job in jobs:
            job.may_end.set()
            pool.put(job)
        assert all(job.begun.wait(TIMEOUT_S) for job in jobs)
        time.sleep(0.001 + 0.00001 * (turn % 200))
    assert pool.stop(TIMEOUT_S)
