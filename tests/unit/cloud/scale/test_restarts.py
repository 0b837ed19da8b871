"""When a worker that died is started again, when one that is silent is taken to hang, and which models are left out."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
from types import SimpleNamespace
from typing import Any

from tests.integration.cloud.processes import is_running
from upwell.cloud.observe.metrics import WorkerMetrics
from upwell.cloud.workers.supervisor import Phase, WorkerHandle, _Supervisor
from upwell.cloud.workers.worker_deaths import FatalVersions, Restarts, Silence
from upwell.cloud.workers.worker_messages import Listen, Message, Statistics
from upwell.shared.oip.model_statistics import ModelStatistics

ONE = ("m", "1")


def test_each_death_in_a_row_is_followed_by_twice_the_wait_and_the_sixth_is_hopeless() -> None:
    states = list(itertools.accumulate([0.0] * Restarts.LIMIT, Restarts.died, initial=Restarts()))[1:]
    assert [state.wait_s for state in states] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert [state.is_hopeless for state in states] == [False] * (Restarts.LIMIT - 1) + [True]
    assert Restarts(20).wait_s == Restarts.LONGEST_WAIT_S
    assert Restarts(2000).wait_s == Restarts.LONGEST_WAIT_S, "of a night, beside workers that serve"


def test_one_that_has_served_for_long_begins_anew() -> None:
    assert Restarts(Restarts.LIMIT - 1).died(Restarts.WELL_S) == Restarts(1)
    assert Restarts(1).died(Restarts.WELL_S - 1.0) == Restarts(2)


def test_one_that_says_nothing_for_the_limit_hangs_and_is_found_once() -> None:
    silence = Silence()
    assert [silence.check() for _ in range(Silence.LIMIT + 5)] == [False] * (Silence.LIMIT - 1) + [True] + [False] * 5


def test_one_that_says_something_in_time_or_loads_a_model_for_minutes_does_not_hang() -> None:
    silence = Silence()
    for count in range(3 * Silence.LIMIT):
        assert not silence.check()
        if count % (Silence.LIMIT - 1) == 0:
            silence.checks = 0
    silence.loading, silence.checks = ("m", "1"), 0
    assert [silence.check() for _ in range(Silence.LOADING_LIMIT)].index(True) == Silence.LOADING_LIMIT - 1
    silence.loading, silence.checks = None, 0
    assert [silence.check() for _ in range(Silence.LIMIT)][-1]


def test_a_version_is_left_out_after_two_deaths_in_a_row_while_it_was_loaded() -> None:
    fatal = FatalVersions()
    fatal.died_loading(ONE)
    fatal.was_loaded(ONE, is_start=True)
    said = fatal.died_loading(ONE)
    assert said.startswith("it was loading model m version 1, which is left out after 2 such deaths")
    assert not fatal.left_out
    fatal.died_loading(ONE)
    assert list(fatal.left_out) == [ONE]
    fatal.was_loaded(ONE, is_start=False)
    assert not fatal.left_out


def test_a_version_is_left_out_after_three_deaths_within_ten_minutes_while_it_ran_though_each_loaded_it_again() -> None:
    fatal = FatalVersions()
    for now_s in (0.0, 300.0, 601.0):
        assert not fatal.left_out
        fatal.was_loaded(ONE, is_start=True)
        said = fatal.died_running(ONE, now_s)
    assert said.startswith("it was running model m version 1, which is left out after 3 such deaths within 10 minutes")
    assert not fatal.left_out
    fatal.died_running(("m", "2"), 602.0)
    fatal.died_running(ONE, 700.0)
    fatal.was_loaded(ONE, is_start=True)  # by a worker that began to start before that death
    assert list(fatal.left_out) == [ONE]
    fatal.was_loaded(ONE, is_start=False)
    fatal.died_running(ONE, 701.0)
    assert not fatal.left_out


def test_a_worker_whose_first_request_ended_it_listens_again_beside_one_that_serves_already() -> None:
    """The service is announced once both serve: it must not wait for that."""
    told: list[Message] = []
    first: Any = SimpleNamespace(phase=Phase.SERVING)
    again: Any = SimpleNamespace(phase=Phase.LOADED, tell=told.extend)
    supervisor = _Supervisor.__new__(_Supervisor)
    supervisor._announced, supervisor._count, supervisor._worker_handles = False, 2, {1: first, 2: again}
    supervisor._on_loaded(again, ())
    assert told == [Listen()]


def test_a_worker_that_hangs_in_its_start_is_killed_after_an_hour() -> None:
    """Every load and unload would wait for it."""
    kills: list[int] = []
    supervisor = _Supervisor.__new__(_Supervisor)
    starting: Any = SimpleNamespace(
        phase=Phase.LOADING,
        silence=Silence(),
        number=2,
        pid=1,
        failure="",
        kill=lambda: kills.append(starting.silence.checks),
    )
    supervisor._drain_until_s, supervisor._worker_handles = None, {2: starting}
    for _ in range(Silence.LOADING_LIMIT + 9):
        supervisor._kill_hung()
    assert kills == [Silence.LOADING_LIMIT]
    assert starting.failure == "no sign of life for 3600 s"


def test_a_service_starts_without_versions_that_end_workers_however_many_there_are() -> None:
    supervisor: Any = _Supervisor.__new__(_Supervisor)
    supervisor._selector = SimpleNamespace(unregister=lambda _: None)
    supervisor._changes = supervisor._statistics = SimpleNamespace(gone=lambda *_: None)
    supervisor._counted, supervisor._fatal, supervisor._start_at_s = WorkerMetrics(), FatalVersions(), {}
    supervisor._announced, supervisor._drain_until_s = False, None
    supervisor._restarts = dict.fromkeys((1, 2), Restarts())
    for model in range(2 * Restarts.LIMIT):
        for number in (1, 2):
            dead = SimpleNamespace(
                number=number,
                pid=1,
                phase=Phase.LOADING,
                silence=Silence(loading=(f"m{model}", "1")),
                crashed_in=None,
                failure="",
                channel=SimpleNamespace(socket=None),
                end=lambda: "killed by SIGFPE",
            )
            supervisor._worker_handles = {number: dead}
            supervisor._on_death(dead)
    assert len(supervisor._fatal.left_out) == 2 * Restarts.LIMIT
    assert sorted(supervisor._start_at_s) == [1, 2]


def test_a_worker_that_reads_nothing_keeps_no_one_and_is_not_taken_to_be_dead() -> None:
    worker = WorkerHandle(1)
    try:
        os.kill(worker.pid, signal.SIGSTOP)
        for number in range(100):
            worker.tell([Statistics(number, tuple(ModelStatistics(f"model-{one}", "1") for one in range(50)))])
        assert worker.events & selectors.EVENT_WRITE
        assert is_running(worker.pid)
    finally:
        worker.kill()
        ends = [worker.end(), worker.end()]  # the second one where no signal ends the supervisor, which is process 1
        assert ends == ["killed by SIGKILL"] * 2
