"""A scheduler for several runs at one time: never more than those, the most urgent first, and never lost."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.unit.edge.agents import SURE, edge_model, rows_of
from tests.unit.edge.schedulers import PATIENT_S, STRESS_THREADS, running, soon, stressed, until, waiting
from upwell.edge.admission.edf_scheduler import EdfScheduler
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.shared.errors import Refused
from upwell.shared.routing.policy.settings import Priority
from upwell.shared.routing.scheduling.run_request import RunRequest

FAR_S = 1000.0
PRIORITIES: list[Priority] = ["low", "normal", "high"]


@contextmanager
def all_running(scheduler: EdfScheduler, runs_s: Sequence[float]) -> Iterator[list[threading.Event]]:
    """Each by a thread of its own, until its event is set."""
    with ExitStack() as stack:
        yield [stack.enter_context(running(scheduler, run_s)) for run_s in runs_s]


def test_two_run_at_one_time_and_the_third_waits_for_the_first_to_end() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    with all_running(scheduler, [1.0, 1.0]) as releases:
        with waiting(scheduler, soon(PATIENT_S), RunRequest(run_s=1.0), log, "third") as thread:
            assert log == []
            releases[1].set()
            thread.join()
        assert log == ["third"]
    assert not scheduler.queue.running


def test_a_model_runs_as_often_at_one_time_as_its_runtime_can() -> None:
    gate = threading.Event()
    edge = edge_model(instances=2, gate=gate)
    assert isinstance(edge.runtime, FakeRuntime)
    threads = [threading.Thread(target=edge.run, args=(rows_of(SURE), math.inf)) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(edge.scheduler.queue.running) == 2 and len(edge.scheduler.queue.waiting) == 1)
    gate.set()
    for thread in threads:
        thread.join()
    assert edge.runtime.runs == 3


def test_the_most_urgent_first_and_equals_in_order() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    with ExitStack() as stack, all_running(scheduler, [math.nan, math.nan]) as releases:
        for name, later_s in (("d", 3.0), ("a", 1.0), ("c", 2.0), ("b", 1.0)):
            stack.enter_context(waiting(scheduler, soon(FAR_S) + 100 * later_s, RunRequest(), log, name))
        releases[0].set()
        until(lambda: len(log) == 4)  # the other place is held all the time
        assert log == ["a", "b", "c", "d"]


def test_admission_counts_a_run_on_each_place() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    with ExitStack() as stack, all_running(scheduler, [10.0, 30.0]) as releases:
        with (
            pytest.raises(Refused, match=r"it needs 1\d{4}\.\d ms"),
            scheduler.acquire(soon(15.0), RunRequest(run_s=10.0)),
        ):
            pytest.fail("it got a turn")
        stack.enter_context(waiting(scheduler, soon(25.0), RunRequest(run_s=10.0), log, "behind the first"))
        with pytest.raises(Refused), scheduler.acquire(soon(29.0), RunRequest(run_s=10.0)):
            pytest.fail("it got a turn")
        for name in ("from 20 s to 30 s", "from 30 s to 40 s", "beside it"):
            stack.enter_context(waiting(scheduler, soon(45.0), RunRequest(run_s=10.0), log, name))
        with pytest.raises(Refused), scheduler.acquire(soon(45.0), RunRequest(run_s=10.0)):
            pytest.fail("it got a turn")
        for release in releases:
            release.set()
    assert sorted(log) == ["behind the first", "beside it", "from 20 s to 30 s", "from 30 s to 40 s"]


def test_what_is_ahead_is_whole_rounds() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    counts = [scheduler.queue.ahead]
    with ExitStack() as stack, all_running(scheduler, [math.nan]):
        counts.append(scheduler.queue.ahead)
        with running(scheduler, math.nan) as release:
            counts.append(scheduler.queue.ahead)
            for index in range(3):
                stack.enter_context(waiting(scheduler, soon(FAR_S) + index, RunRequest(), log, str(index)))
                counts.append(scheduler.queue.ahead)
            assert scheduler.ahead_of(math.inf, RunRequest()) == 2
            assert scheduler.ahead_of(soon(FAR_S) - 10, RunRequest()) == 1
            assert scheduler.ahead_of(math.inf, RunRequest(priority="high")) == 1
            release.set()
    assert counts == [0, 0, 1, 1, 2, 2]


def test_with_fewer_instances_than_run_a_place_is_free_when_the_last_of_them_ends() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    with ExitStack() as stack, all_running(scheduler, [30.0, 10.0]) as releases:
        scheduler.resize(1)
        with pytest.raises(Refused), scheduler.acquire(soon(25.0), RunRequest(run_s=10.0)):
            pytest.fail("it got a turn")
        stack.enter_context(waiting(scheduler, soon(45.0), RunRequest(run_s=10.0), log, "behind both"))
        releases[1].set()
        until(lambda: len(scheduler.queue.running) == 1)
        assert log == []
        releases[0].set()
    assert log == ["behind both"]


def test_reservations_lie_beside_each_other_until_all_places_are_kept() -> None:
    scheduler = EdfScheduler(2)
    with (
        scheduler.reserve(10.0, 12.0) as first,
        scheduler.reserve(10.0, 12.0) as second,
        scheduler.reserve(10.0, 12.0) as third,
    ):
        assert (first, second) == (10.0, 10.0)
        assert third == 6.0  # twice as long, since runs add up from here on
        with scheduler.reserve(9.0, 10.0) as fourth:
            assert fourth == 8.0


def test_a_reservation_keeps_one_place_and_leaves_the_other() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    with ExitStack() as reservation:
        reservation.enter_context(scheduler.reserve(soon(5.0), soon(10.0)))
        with ExitStack() as stack, scheduler.acquire(soon(FAR_S), RunRequest(run_s=8.0)):
            with pytest.raises(Refused), scheduler.acquire(soon(12.0), RunRequest(run_s=8.0)):
                pytest.fail("it took the place that was promised")
            stack.enter_context(waiting(scheduler, soon(FAR_S), RunRequest(run_s=8.0), log, "after it"))
            with scheduler.acquire(soon(FAR_S), RunRequest(run_s=1.0)):
                assert len(scheduler.queue.running) == 2  # there is time for this one before
            assert log == []
            reservation.close()
            until(lambda: log == ["after it"])


def test_the_run_of_a_reservation_does_not_keep_its_place_twice() -> None:
    scheduler = EdfScheduler(2)
    with (
        scheduler.reserve(soon(1.0), soon(6.0)),
        scheduler.acquire(soon(6.0), RunRequest(run_s=5.0, is_owed=True)),
        scheduler.acquire(soon(6.0), RunRequest(run_s=5.0)),
    ):
        assert len(scheduler.queue.running) == 2


def test_more_instances_let_those_in_who_wait_and_fewer_keep_them_out() -> None:
    scheduler, log = EdfScheduler(), list[str]()
    with ExitStack() as stack, all_running(scheduler, [math.nan]) as first:
        thread = stack.enter_context(waiting(scheduler, soon(FAR_S), RunRequest(), log, "second"))
        scheduler.resize(2)
        thread.join()
        assert log == ["second"]
        with running(scheduler, math.nan) as second:
            scheduler.resize(1)
            stack.enter_context(waiting(scheduler, soon(FAR_S), RunRequest(), log, "third"))
            second.set()
            until(lambda: len(scheduler.queue.running) == 1)
            assert log == ["second"]
        first[0].set()
    assert log == ["second", "third"]


@pytest.mark.parametrize("instances", [2, 3])
def test_under_stress_no_more_run_than_may_and_everyone_gets_an_end(instances: int) -> None:
    scheduler, counting = EdfScheduler(instances), threading.Lock()
    inside, most = [0], [0]
    ran_by_thread = [0] * STRESS_THREADS

    def run(rng: random.Random, index: int) -> None:
        with counting:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        started = threading.Event()
        if rng.random() < 0.2:
            started.wait(1e-5)  # lets the others in
        with counting:
            inside[0] -= 1
        if rng.random() < 0.2:
            raise ValueError
        ran_by_thread[index] += 1

    def once(rng: random.Random, index: int) -> None:
        deadline_s = soon(rng.choice((-1.0, 0.0, 1e-5, 1e-4, 1e-3, PATIENT_S, math.inf)))
        run_request = RunRequest(
            run_s=rng.choice((math.nan, 0.0, 1e-5, 1e-4)),
            priority=rng.choice(PRIORITIES),
            stream=rng.choice((None, None, "dock")),
            arrived_s=soon(0.0),
        )
        if rng.random() < 0.2:
            with (
                scheduler.reserve(soon(1e-4), soon(2e-4)),
                scheduler.acquire(deadline_s, RunRequest(run_s=1e-4, is_owed=True)),
            ):
                run(rng, index)
        else:
            with scheduler.acquire(deadline_s, run_request):
                run(rng, index)

    counts = stressed(once)
    assert set(counts) <= {"ran", "ValueError", "DeadlineExceeded", "Superseded", "Refused"}
    assert most[0] == instances
    assert min(ran_by_thread) > 0
    assert not [*scheduler.queue.waiting, *scheduler.queue.running, *scheduler.queue.slots]


def test_nobody_is_passed_for_ever_by_equals_that_keep_coming() -> None:
    scheduler, log = EdfScheduler(2), list[str]()
    stop = threading.Event()

    def keep_coming() -> None:
        while not stop.is_set():
            with scheduler.acquire(math.inf, RunRequest()):
                pass

    threads = [threading.Thread(target=keep_coming) for _ in range(4)]
    with all_running(scheduler, [math.nan, math.nan]) as releases, ExitStack() as stack:
        patient = stack.enter_context(waiting(scheduler, math.inf, RunRequest(), log, "patient"))
        for thread in threads:
            thread.start()
        for release in releases:
            release.set()
        patient.join(PATIENT_S)
        stop.set()
    for thread in threads:
        thread.join()
    assert log == ["patient"]
