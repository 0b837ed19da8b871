"""What the fake runtime can be told to do."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from upwell.edge.runtimes.fake import FakeRuntime
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import TensorSpec

X = {"x": np.ones(2, np.float32)}


def double(**settings: object) -> FakeRuntime:
    specs = [TensorSpec(name, "FP32", (-1,)) for name in "xy"]
    return FakeRuntime(lambda inputs: {"y": inputs["x"] * 2}, specs[:1], specs[1:], **settings)  # type: ignore[arg-type]  # passed through


def test_it_fails_for_as_long_as_it_is_told_to() -> None:
    runtime = double(failure="no power")
    with pytest.raises(ModelFailed, match="no power"):
        runtime.run(X)
    runtime.failure = ""
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
