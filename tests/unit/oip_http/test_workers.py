from __future__ import annotations

import sys
import threading

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
