"""Several interpreters of one model: they run at one time, and a delegate that fails is left in all of them."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pytest

from tests.unit.tflite_for_tests import TFLITE_PACKAGES, two_in_two_out
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.runtime import TfliteRuntime
from upwell.shared.errors import InvalidRequest, ModelFailed


@pytest.fixture(params=TFLITE_PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Opener:
    """Opens the model of two inputs with the software delegate."""

    def __init__(self, package: str, library: Path, model: Path) -> None:
        self._package, self._library, self._model = package, library, model

    def __call__(self, instances: int, **options: str | int) -> Runtime:
        accelerator = AcceleratorOptions(
            provider="software", library=self._library, options={"claim": "all", **options}
        )
        settings = RuntimeOptions.model_validate({"package": self._package, "instances": instances})
        return load_runtime(self._model, settings, accelerator)


@pytest.fixture
def open_with(package: str, software_delegate: Path, tmp_path: Path) -> Opener:
    return Opener(package, software_delegate, two_in_two_out(tmp_path))


def ask(runtime: Runtime, number: int) -> None:
    a = np.full((1 + number % 3, 3), number, np.float32)
    answer = runtime.run({"a": a, "b": a})
    np.testing.assert_array_equal(answer["sum"], a + a)
    np.testing.assert_array_equal(answer["product"], a * a)


def ask_all(runtime: Runtime, callers: int, requests: int) -> None:
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(lambda number: ask(runtime, number), range(requests)))


def test_the_number_of_interpreters_is_that_of_the_options(package: str, open_with: Opener, tmp_path: Path) -> None:
    model = two_in_two_out(tmp_path)
    options = RuntimeOptions.model_validate({"package": package, "threads": 1, "instances": 3})
    assert TfliteRuntime(model, options).instances == 3
    assert TfliteRuntime(model, RuntimeOptions.model_validate({"package": package})).instances == 1
    assert open_with(2).instances == 2


def test_an_accelerator_has_one_unless_more_are_written(package: str, software_delegate: Path, tmp_path: Path) -> None:
    options = RuntimeOptions.model_validate({"package": package, "threads": 1})
    accelerator = AcceleratorOptions(provider="software", library=software_delegate, options={"claim": "all"})
    assert TfliteRuntime(two_in_two_out(tmp_path), options, accelerator).instances == 1


def test_as_many_runs_as_interpreters_are_under_way_at_one_time(open_with: Opener, tmp_path: Path) -> None:
    runtime = open_with(3, nodes="0", claim="", meet=f"3:{tmp_path / 'meeting'}")
    ask_all(runtime, callers=3, requests=3)
    assert runtime.placement.nodes_on_accelerator == 1


def test_many_callers_get_their_own_answers(open_with: Opener) -> None:
    ask_all(open_with(3), callers=8, requests=300)


def test_a_delegate_that_fails_at_the_hundredth_run_costs_no_answer(open_with: Opener) -> None:
    runtime = open_with(2, fail_after=99)
    ask_all(runtime, callers=4, requests=400)
    assert runtime.placement.nodes_on_accelerator == 0
    assert "told to fail in invoke" in runtime.placement.reason
    assert "failed while running" in runtime.placement.reason


def test_one_failure_leaves_the_delegate_in_every_interpreter(open_with: Opener) -> None:
    runtime = open_with(3, fail_after=1)
    for number in range(3):
        ask(runtime, number)
    reason = runtime.placement.reason
    assert reason
    ask_all(runtime, callers=3, requests=30)
    assert runtime.placement.reason == reason


def test_a_bad_request_costs_one_interpreter_and_not_the_others(open_with: Opener) -> None:
    runtime = open_with(2)
    for _ in range(4):
        with pytest.raises(InvalidRequest, match="does not accept these shapes"):
            runtime.run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((5, 3), np.float32)})
        ask(runtime, 1)
    assert runtime.placement.nodes_on_accelerator == 2


def test_one_that_cannot_be_opened_is_a_reason_for_all(open_with: Opener) -> None:
    with pytest.raises(AcceleratorNotUsable, match="told to fail in prepare"):
        open_with(2, fail_prepare=1)


def test_callers_who_wait_are_told_that_the_model_was_closed(open_with: Opener, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.touch()
    runtime = open_with(1, nodes="0", claim="", meet=f"2:{meeting}")
    with ThreadPoolExecutor(3) as callers:
        calls = [callers.submit(ask, runtime, 2) for _ in range(3)]
        while meeting.stat().st_size < 1:  # one is under way
            time.sleep(0.001)
        runtime.close()
        waiting = list(itertools.islice(as_completed(calls, 20), 2))
        with meeting.open("a") as file:
            file.write(".")  # the one under way may go on
        outcomes = [call.exception() for call in calls]
    assert all("closed" in str(call.exception()) for call in waiting)
    assert [type(outcome) for outcome in outcomes].count(ModelFailed) == 2
    assert outcomes.count(None) == 1
