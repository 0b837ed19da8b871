"""What the fake runtime can be told to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from upwell.edge.runtimes.fake import Behaviour, FakeRuntime
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec

X = {"x": np.ones(2, np.float32)}


def double(**behaviour: Any) -> FakeRuntime:
    specs = [TensorSpec(name, "FP32", (-1,)) for name in "xy"]
    return FakeRuntime(lambda inputs: {"y": inputs["x"] * 2}, specs[:1], specs[1:], behaviour=Behaviour(**behaviour))


def test_it_fails_for_as_long_as_it_is_told_to() -> None:
    runtime = double(failure="no power")
    with pytest.raises(ModelFailed, match="no power"):
        runtime.run(X)
    runtime.behaviour.failure = ""
    np.testing.assert_array_equal(runtime.run(X)["y"], [2, 2])
    assert runtime.runs == 2


def test_it_takes_the_time_it_is_told_to() -> None:
    runtime = double(latency_s=0.03)
    begin_s = time.perf_counter()
    runtime.run(X)
    assert time.perf_counter() - begin_s >= 0.03


def test_it_waits_for_its_gate() -> None:
    gate, done = threading.Event(), threading.Event()
    runtime = double(gate=gate)

    def work() -> None:
        runtime.run(X)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not done.wait(0.02)
    gate.set()
    thread.join(5)
    assert done.is_set()


def test_a_function_that_fails_is_a_model_that_fails() -> None:
    specs = [TensorSpec("x", "FP32", (-1,))]
    with pytest.raises(ModelFailed, match="fake model failed"):
        FakeRuntime(lambda inputs: {"wrong": inputs["x"]}, specs, [TensorSpec("y", "FP32", (-1,))]).run(X)


def test_invalid_inputs_do_not_count_as_runs() -> None:
    runtime = double()
    with pytest.raises(InvalidRequest):
        runtime.run({"x": np.ones((2, 2), np.float32)})
    assert runtime.runs == 0


def test_it_runs_as_often_at_one_time_as_it_is_told_to() -> None:
    at_once, counting, pairs = [0, 0], threading.Lock(), threading.Barrier(2, timeout=5)

    def meet(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        with counting:
            at_once[0] += 1
            at_once[1] = max(at_once)
        pairs.wait()
        with counting:
            at_once[0] -= 1
        return {"y": inputs["x"]}

    specs = [TensorSpec(name, "FP32", (-1,)) for name in "xy"]
    runtime = FakeRuntime(meet, specs[:1], specs[1:], instances=2)
    threads = [threading.Thread(target=runtime.run, args=(X,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (at_once, runtime.runs) == ([0, 2], 4)
