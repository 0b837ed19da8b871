"""A lane for several runs at one time: never more than those, the most urgent first, and never lost."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.unit.edge.agents import SURE, edge_model, rows_of
from tests.unit.edge.lanes import PATIENT_S, STRESS_THREADS, running, soon, stressed, until, waiting
from upwell.edge.lane import Lane
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.timetable import Claim
from upwell.shared.errors import Refused
from upwell.shared.routing.settings import Priority

FAR_S = 1000.0
PRIORITIES: list[Priority] = ["low", "normal", "high"]


@contextmanager
def all_running(lane: Lane, runs_s: Sequence[float]) -> Iterator[list[threading.Event]]:
    """Each by a thread of its own, until its event is set."""
    with ExitStack() as stack:
        yield [stack.enter_context(running(lane, run_s)) for run_s in runs_s]


def test_two_run_at_one_time_and_the_third_waits_for_the_first_to_end() -> None:
    lane, log = Lane(2), list[str]()
    with all_running(lane, [1.0, 1.0]) as releases:
        with waiting(lane, soon(PATIENT_S), Claim(run_s=1.0), log, "third") as thread:
            assert log == []
            releases[1].set()
            thread.join()
        assert log == ["third"]
    assert not lane._running


def test_a_model_runs_as_often_at_one_time_as_its_runtime_can() -> None:
    gate = threading.Event()
    edge = edge_model(instances=2, gate=gate)
    assert isinstance(edge.runtime, FakeRuntime)
    threads = [threading.Thread(target=edge.run, args=(rows_of(SURE), math.inf)) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(edge.lane._running) == 2 and len(edge.lane._waiting) == 1)
    gate.set()
    for thread in threads:
        thread.join()
    assert edge.runtime.runs == 3


def test_the_most_urgent_first_and_equals_in_order() -> None:
    lane, log = Lane(2), list[str]()
    with ExitStack() as stack, all_running(lane, [math.nan, math.nan]) as releases:
        for name, later_s in (("d", 3.0), ("a", 1.0), ("c", 2.0), ("b", 1.0)):
            stack.enter_context(waiting(lane, soon(FAR_S) + 100 * later_s, Claim(), log, name))
        releases[0].set()
        until(lambda: len(log) == 4)  # the other place is held all the time
        assert log == ["a", "b", "c", "d"]


def test_admission_counts_a_run_on_each_place() -> None:
    lane, log = Lane(2), list[str]()
    with ExitStack() as stack, all_running(lane, [10.0, 30.0]) as releases:
        with pytest.raises(Refused, match=r"it is done in 1\d{4}\.\d ms"), lane.turn(soon(15.0), Claim(run_s=10.0)):
            pytest.fail("it got a turn")
        stack.enter_context(waiting(lane, soon(25.0), Claim(run_s=10.0), log, "behind the first"))
        with pytest.raises(Refused), lane.turn(soon(29.0), Claim(run_s=10.0)):
            pytest.fail("it got a turn")
        for name in ("from 20 s to 30 s", "from 30 s to 40 s", "beside it"):
            stack.enter_context(waiting(lane, soon(45.0), Claim(run_s=10.0), log, name))
        with pytest.raises(Refused), lane.turn(soon(45.0), Claim(run_s=10.0)):
            pytest.fail("it got a turn")
        for release in releases:
            release.set()
    assert sorted(log) == ["behind the first", "beside it", "from 20 s to 30 s", "from 30 s to 40 s"]


def test_what_is_ahead_is_whole_rounds() -> None:
    lane, log = Lane(2), list[str]()
    counts = [lane.ahead]
    with ExitStack() as stack, all_running(lane, [math.nan]):
        counts.append(lane.ahead)
        with running(lane, math.nan) as release:
            counts.append(lane.ahead)
            for index in range(3):
                stack.enter_context(waiting(lane, soon(FAR_S) + index, Claim(), log, str(index)))
                counts.append(lane.ahead)
            assert lane.ahead_of(math.inf, Claim()) == 2
            assert lane.ahead_of(soon(FAR_S) - 10, Claim()) == 1
            assert lane.ahead_of(math.inf, Claim(priority="high")) == 1
            release.set()
    assert counts == [0, 0, 1, 1, 2, 2]


def test_with_fewer_instances_than_run_a_place_is_free_when_the_last_of_them_ends() -> None:
    lane, log = Lane(2), list[str]()
    with ExitStack() as stack, all_running(lane, [30.0, 10.0]) as releases:
        lane.resize(1)
        with pytest.raises(Refused), lane.turn(soon(25.0), Claim(run_s=10.0)):
            pytest.fail("it got a turn")
        stack.enter_context(waiting(lane, soon(45.0), Claim(run_s=10.0), log, "behind both"))
        releases[1].set()
        until(lambda: len(lane._running) == 1)
        assert log == []
        releases[0].set()
    assert log == ["behind both"]


def test_promises_lie_beside_each_other_until_all_places_are_kept() -> None:
    lane = Lane(2)
    with lane.promise(10.0, 12.0) as first, lane.promise(10.0, 12.0) as second, lane.promise(10.0, 12.0) as third:
        assert (first, second) == (10.0, 10.0)
        assert third == 6.0  # twice as long, since runs add up from here on
        with lane.promise(9.0, 10.0) as fourth:
            assert fourth == 8.0


def test_a_promise_keeps_one_place_and_leaves_the_other() -> None:
    lane, log = Lane(2), list[str]()
    with ExitStack() as promise:
        promise.enter_context(lane.promise(soon(5.0), soon(10.0)))
        with ExitStack() as stack, lane.turn(soon(FAR_S), Claim(run_s=8.0)):
            with pytest.raises(Refused), lane.turn(soon(12.0), Claim(run_s=8.0)):
                pytest.fail("it took the place that was promised")
            stack.enter_context(waiting(lane, soon(FAR_S), Claim(run_s=8.0), log, "after it"))
            with lane.turn(soon(FAR_S), Claim(run_s=1.0)):
                assert len(lane._running) == 2  # there is time for this one before
            assert log == []
            promise.close()
            until(lambda: log == ["after it"])


def test_the_run_of_a_promise_does_not_keep_its_place_twice() -> None:
    lane = Lane(2)
    with (
        lane.promise(soon(1.0), soon(6.0)),
        lane.turn(soon(6.0), Claim(run_s=5.0, is_owed=True)),
        lane.turn(soon(6.0), Claim(run_s=5.0)),
    ):
        assert len(lane._running) == 2


def test_more_instances_let_those_in_who_wait_and_fewer_keep_them_out() -> None:
    lane, log = Lane(), list[str]()
    with ExitStack() as stack, all_running(lane, [math.nan]) as first:
        thread = stack.enter_context(waiting(lane, soon(FAR_S), Claim(), log, "second"))
        lane.resize(2)
        thread.join()
        assert log == ["second"]
        with running(lane, math.nan) as second:
            lane.resize(1)
            stack.enter_context(waiting(lane, soon(FAR_S), Claim(), log, "third"))
            second.set()
            until(lambda: len(lane._running) == 1)
            assert log == ["second"]
        first[0].set()
    assert log == ["second", "third"]


@pytest.mark.parametrize("instances", [2, 3])
def test_under_stress_no_more_run_than_may_and_everyone_gets_an_end(instances: int) -> None:
    lane, counting = Lane(instances), threading.Lock()
    inside, most = [0], [0]
    ran_by_thread = [0] * STRESS_THREADS

    def run(rng: random.Random, index: int) -> None:
        with counting:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        begun = threading.Event()
        if rng.random() < 0.2:
            begun.wait(1e-5)  # lets the others in
        with counting:
            inside[0] -= 1
        if rng.random() < 0.2:
            raise ValueError
        ran_by_thread[index] += 1

    def once(rng: random.Random, index: int) -> None:
        deadline_s = soon(rng.choice((-1.0, 0.0, 1e-5, 1e-4, 1e-3, PATIENT_S, math.inf)))
        claim = Claim(
            run_s=rng.choice((math.nan, 0.0, 1e-5, 1e-4)),
            priority=rng.choice(PRIORITIES),
            stream=rng.choice((None, None, "dock")),
            arrived_s=soon(0.0),
        )
        if rng.random() < 0.2:
            with lane.promise(soon(1e-4), soon(2e-4)), lane.turn(deadline_s, Claim(run_s=1e-4, is_owed=True)):
                run(rng, index)
        else:
            with lane.turn(deadline_s, claim):
                run(rng, index)

    counts = stressed(once)
    assert set(counts) <= {"ran", "ValueError", "DeadlineExceeded", "Superseded", "Refused"}
    assert most[0] == instances
    assert min(ran_by_thread) > 0
    assert not [*lane._waiting, *lane._running, *lane._slots]


def test_nobody_is_passed_for_ever_by_equals_that_keep_coming() -> None:
    lane, log = Lane(2), list[str]()
    stop = threading.Event()

    def keep_coming() -> None:
        while not stop.is_set():
            with lane.turn(math.inf, Claim()):
                pass

    threads = [threading.Thread(target=keep_coming) for _ in range(4)]
    with all_running(lane, [math.nan, math.nan]) as releases, ExitStack() as stack:
        patient = stack.enter_context(waiting(lane, math.inf, Claim(), log, "patient"))
        for thread in threads:
            thread.start()
        for release in releases:
            release.set()
        patient.join(PATIENT_S)
        stop.set()
    for thread in threads:
        thread.join()
    assert log == ["patient"]
