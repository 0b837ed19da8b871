"""A scheduler that is held, and others who wait for it, each in a thread of its own."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from upwell.edge.admission.edf_scheduler import EdfScheduler
from upwell.shared.errors import UpwellError
from upwell.shared.routing.scheduling.run_request import RunRequest

PATIENT_S = 20.0
STRESS_THREADS = 12
STRESS_ROUNDS = 150


def until(true: Callable[[], bool]) -> None:
    """Wait for something that other threads bring about."""
    limit_s = time.monotonic() + PATIENT_S
    while not true():
        assert time.monotonic() < limit_s, "it never came"
        time.sleep(0.0005)


def holding(scheduler: EdfScheduler) -> AbstractContextManager[threading.Event]:
    """The scheduler held by another thread until the event is set, or the block ends."""
    return running(scheduler, math.nan)


def assert_free(scheduler: EdfScheduler) -> None:
    """Nobody holds it, nobody waits, and the next turn is to be had at once."""
    assert scheduler.queue.ahead == 0
    with scheduler.acquire(time.monotonic() + PATIENT_S):
        assert scheduler.queue.ahead == 1
    assert scheduler.queue.ahead == 0


@contextmanager
def waiting(
    scheduler: EdfScheduler, deadline_s: float, run_request: RunRequest, log: list[str], name: str
) -> Iterator[threading.Thread]:
    """Somebody who waits for the scheduler; `log` gets the name when it has its turn, or what it was told."""

    def wait() -> None:
        try:
            with scheduler.acquire(deadline_s, run_request):
                log.append(name)
        except UpwellError as error:
            log.append(f"{name}: {type(error).__name__}")

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: any(ticket.run_request is run_request for ticket in scheduler.queue.waiting) or not thread.is_alive())
    try:
        yield thread
    finally:
        thread.join()


@contextmanager
def running(scheduler: EdfScheduler, run_s: float) -> Iterator[threading.Event]:
    """As `holding`, by a run that claims to take `run_s`; NaN is a run_request to nothing."""
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with scheduler.acquire(math.inf, RunRequest(run_s=run_s)):
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield release
    finally:
        release.set()
        thread.join()


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


def stressed(once: Callable[[random.Random, int], None]) -> Mapping[str, int]:
    """How often each thing came of `once`, done `STRESS_ROUNDS` times by each of `STRESS_THREADS` threads.

    It gets the thread's random numbers and index. What came is the name of the error; `ran` where there was none.
    """
    counts, counting = Counter[str](), threading.Lock()

    def work(index: int) -> None:
        rng = random.Random(index)
        for _ in range(STRESS_ROUNDS):
            outcome = "ran"
            try:
                once(rng, index)
            except (UpwellError, ValueError) as error:
                outcome = type(error).__name__
            with counting:
                counts[outcome] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(STRESS_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts.values()) == STRESS_THREADS * STRESS_ROUNDS
    return counts
