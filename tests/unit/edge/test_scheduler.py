"""The scheduler: one at a time, the most urgent first, and never lost, whoever leaves it and how."""

from __future__ import annotations

import itertools
import math
import random
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from queue import SimpleQueue

import pytest

from tests.unit.edge.schedulers import PATIENT_S, assert_free, holding, stressed, until
from upwell.edge.admission.edf_scheduler import EdfScheduler, RunWithdrawn
from upwell.shared.errors import DeadlineExceeded, Refused
from upwell.shared.routing.scheduling.run_request import RunRequest


def test_a_turn_is_counted_while_it_lasts() -> None:
    scheduler = EdfScheduler()
    assert scheduler.queue.ahead == 0
    with scheduler.acquire(math.inf):
        assert scheduler.queue.ahead == 1
    assert_free(scheduler)


def test_one_after_the_other_the_most_urgent_first_and_equals_in_order() -> None:
    scheduler = EdfScheduler()
    far_s = time.monotonic() + 1000
    deadlines = [far_s + 3, far_s + 1, math.inf, far_s + 2, far_s + 1, math.inf]
    order: list[int] = []

    def wait_for_turn(index: int) -> None:
        with scheduler.acquire(deadlines[index]):
            order.append(index)

    with holding(scheduler) as release:
        threads = []
        for index in range(len(deadlines)):
            threads.append(threading.Thread(target=wait_for_turn, args=(index,)))
            threads[-1].start()
            until(lambda count=index + 2: scheduler.queue.ahead == count)  # type: ignore[misc]  # bound now
        release.set()
        for thread in threads:
            thread.join()
    assert order == [1, 4, 3, 0, 2, 5]
    assert_free(scheduler)


@pytest.mark.parametrize("late_s", [0.0, 1e-9, 5.0, math.inf])
def test_a_deadline_that_has_passed_leaves_a_busy_scheduler_at_once(late_s: float) -> None:
    scheduler = EdfScheduler()
    with holding(scheduler):
        with (
            pytest.raises(DeadlineExceeded, match="busy until the deadline"),
            scheduler.acquire(time.monotonic() - late_s),
        ):
            pytest.fail("the device was held twice")
        assert scheduler.queue.ahead == 1
    assert_free(scheduler)


def test_a_deadline_that_comes_while_waiting_ends_the_wait() -> None:
    scheduler = EdfScheduler()
    with holding(scheduler):
        begin_s = time.monotonic()
        with pytest.raises(DeadlineExceeded), scheduler.acquire(begin_s + 0.05):
            pytest.fail("the device was held twice")
        assert time.monotonic() - begin_s >= 0.05
    assert_free(scheduler)


def test_who_leaves_the_queue_does_not_hold_up_those_behind() -> None:
    scheduler = EdfScheduler()
    went: list[str] = []

    def patient() -> None:
        with scheduler.acquire(math.inf):
            went.append("patient")

    with holding(scheduler) as release:
        thread = threading.Thread(target=patient)
        thread.start()
        until(lambda: scheduler.queue.ahead == 2)
        with pytest.raises(DeadlineExceeded), scheduler.acquire(time.monotonic() + 0.02):
            pass
        release.set()
        thread.join()
    assert went == ["patient"]
    assert_free(scheduler)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_inside_a_turn_gives_the_scheduler_back(error: type[BaseException]) -> None:
    scheduler = EdfScheduler()
    with pytest.raises(error), scheduler.acquire(math.inf):
        raise error
    assert_free(scheduler)


def stands_still(thread: int) -> bool:
    """Whether a thread waits: it is at the same instruction again and again."""
    places, pause = set(), threading.Event()
    for _ in range(20):
        frame = sys._current_frames()[thread]
        places.add((frame.f_code, frame.f_lasti))
        pause.wait(0.001)
    return len(places) == 1


class Stopped(BaseException):
    """As KeyboardInterrupt: raised by a signal, wherever the main thread is."""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_who_is_interrupted_while_waiting_does_not_take_the_scheduler_along() -> None:
    scheduler = EdfScheduler()

    def stop(*_: object) -> None:
        raise Stopped

    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupt() -> None:
        until(lambda: scheduler.queue.ahead == 3 and stands_still(main))
        signal.pthread_kill(main, signal.SIGUSR1)

    def take_a_turn() -> None:
        with scheduler.acquire(time.monotonic() + PATIENT_S):
            went.append("after all")

    went: list[str] = []
    former = signal.signal(signal.SIGUSR1, stop)
    try:
        with holding(scheduler) as release:
            urgent = threading.Thread(target=take_a_turn)
            urgent.start()
            until(lambda: scheduler.queue.ahead == 2)
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(Stopped), scheduler.acquire(math.inf):
                pytest.fail("the device was held twice")
            thread.join()
            assert (scheduler.queue.ahead, went) == (2, [])
            release.set()
            urgent.join()
            assert went == ["after all"]
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert_free(scheduler)


def test_under_stress_nobody_shares_the_scheduler_and_nobody_loses_it() -> None:
    scheduler, inside = EdfScheduler(), [0]

    def once(rng: random.Random, _: int) -> None:
        with scheduler.acquire(time.monotonic() + rng.choice((-1.0, 0.0, 1e-5, 1e-4, 1e-3, 1.0, math.inf))):
            inside[0] += 1
            assert inside[0] == 1
            if rng.random() < 0.05:
                time.sleep(0)
            inside[0] -= 1
            if rng.random() < 0.3:
                raise ValueError

    counts = stressed(once)
    assert set(counts) <= {"ran", "ValueError", "DeadlineExceeded"}
    assert counts["ran"] > 0
    assert counts["ValueError"] > 0
    assert_free(scheduler)


def test_a_turn_that_is_handed_on_in_the_moment_of_the_timeout_is_not_lost() -> None:
    scheduler = EdfScheduler()
    for _ in range(300):
        with holding(scheduler) as release:
            release.set()
            try:
                with scheduler.acquire(time.monotonic() + 2e-5):
                    pass
            except DeadlineExceeded:
                pass
        assert scheduler.queue.ahead == 0
    assert_free(scheduler)


def test_news_ends_the_wait_for_a_turn_but_no_turn() -> None:
    scheduler, news = EdfScheduler(), SimpleQueue[bool]()
    news.put(False)
    with holding(scheduler):
        with pytest.raises(RunWithdrawn), scheduler.acquire(math.inf, RunRequest(), news):
            pytest.fail("the device was held twice")
        assert scheduler.queue.ahead == 1
    news.put(False)
    with scheduler.acquire(math.inf, RunRequest(), news):
        assert scheduler.queue.ahead == 1
    assert_free(scheduler)


def test_a_turn_that_is_handed_on_in_the_moment_of_the_news_is_not_lost() -> None:
    scheduler = EdfScheduler()
    for _ in range(300):
        news = SimpleQueue[bool]()
        with holding(scheduler) as release:
            release.set()
            news.put(False)
            with suppress(RunWithdrawn), scheduler.acquire(math.inf, RunRequest(), news):
                pass
        assert scheduler.queue.ahead == 0
    assert_free(scheduler)


def test_a_reservation_gets_the_slot_it_wants_and_the_next_one_the_gap_before_it() -> None:
    scheduler = EdfScheduler()
    with (
        scheduler.reserve(10.0, 12.0) as first,
        scheduler.reserve(10.0, 12.0) as second,
        scheduler.reserve(11.0, 12.0) as third,
    ):
        assert (first, second, third) == (10.0, 6.0, 4.0)
        with (
            scheduler.reserve(20.0, 21.0) as later,
            scheduler.reserve(1.0, 2.0) as sooner,
            scheduler.reserve(12.0, 12.5) as after,
        ):
            assert (later, sooner, after) == (19.0, 0.0, 3.0)
    with scheduler.reserve(10.0, 12.0) as again:
        assert again == 10.0


def test_a_reservation_fills_a_gap_that_is_long_enough_and_no_shorter_one() -> None:
    scheduler = EdfScheduler()
    with (
        scheduler.reserve(10.0, 12.0),
        scheduler.reserve(7.0, 8.0),
    ):  # the second gets [6, 8], twice as long as it wants
        with scheduler.reserve(11.0, 12.0) as fits:
            assert fits == 8.0
        with scheduler.reserve(10.75, 12.0) as too_long:
            assert too_long == 3.5


def test_a_run_of_no_length_needs_no_slot() -> None:
    scheduler = EdfScheduler()
    with scheduler.reserve(5.0, 5.0) as first, scheduler.reserve(5.0, 5.0) as second:
        assert (first, second) == (5.0, 5.0)


@pytest.mark.parametrize("seed", range(20))
def test_reservations_never_overlap_and_never_end_later_than_wanted(seed: int) -> None:
    scheduler, rng = EdfScheduler(), random.Random(seed)
    slots: list[tuple[float, float]] = []
    with ExitStack() as stack:
        for _ in range(40):
            length_s, end_s = rng.choice((0.5, 1.0, 3.0)), float(rng.randrange(40))
            start_s = stack.enter_context(scheduler.reserve(end_s - length_s, end_s))
            assert start_s <= end_s - length_s
            slots.append((start_s, start_s + length_s))
    slots.sort()
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(slots))
    with scheduler.reserve(0.0, 100.0) as free:
        assert free == 0.0


def test_a_reservation_is_free_again_whatever_ends_it() -> None:
    scheduler = EdfScheduler()
    with pytest.raises(KeyboardInterrupt), scheduler.reserve(1.0, 2.0):
        raise KeyboardInterrupt
    with scheduler.reserve(1.0, 2.0) as start_s:
        assert start_s == 1.0


def test_a_turn_that_would_break_a_reservation_waits_until_it_is_kept() -> None:
    scheduler, order = EdfScheduler(), list[str]()
    now_s = time.monotonic()

    def other() -> None:
        with scheduler.acquire(now_s + 5.0, RunRequest(run_s=0.5)):
            order.append("other")

    thread = threading.Thread(target=other)
    with scheduler.reserve(now_s + 0.2, now_s + 0.3):
        thread.start()
        until(lambda: scheduler.queue.ahead == 1)
        with scheduler.acquire(now_s + 5.0, RunRequest(run_s=0.1, is_owed=True)):
            order.append("owed")
    thread.join(10.0)
    assert order == ["owed", "other"]


def test_it_gets_its_turn_where_the_reservation_is_not_needed() -> None:
    scheduler = EdfScheduler()
    now_s = time.monotonic()
    done = threading.Event()

    def other() -> None:
        with scheduler.acquire(now_s + 5.0, RunRequest(run_s=0.5)):
            done.set()

    thread = threading.Thread(target=other)
    with scheduler.reserve(now_s + 0.2, now_s + 0.3):
        thread.start()
        until(lambda: scheduler.queue.ahead == 1)
        assert not done.is_set()
    thread.join(10.0)
    assert done.is_set()


def test_a_turn_without_the_time_to_wait_for_a_reservation_is_refused() -> None:
    scheduler = EdfScheduler()
    now_s = time.monotonic()
    with (
        scheduler.reserve(now_s + 0.2, now_s + 0.3),
        pytest.raises(Refused),
        scheduler.acquire(now_s + 0.6, RunRequest(run_s=0.5)),
    ):
        pass
