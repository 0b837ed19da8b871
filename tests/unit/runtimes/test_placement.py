"""What a placement means for the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.runtimes.fallback_runtime import FallbackRuntime
from upwell.edge.runtimes.placement import AcceleratorFailed, AcceleratorNotUsable, from_nodes, judge
from upwell.edge.runtimes.runtime_options import AcceleratorOptions
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec

Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]
MUST = AcceleratorOptions(provider="npu", require="must")
PREFER = AcceleratorOptions(provider="npu")


def test_must_needs_every_node() -> None:
    judge(MUST, from_nodes(MUST, 3, ()))
    with pytest.raises(AcceleratorNotUsable, match=r"'npu' is required but leaves 1 of 3 nodes on the CPU: nms$"):
        judge(MUST, from_nodes(MUST, 3, ("nms",)))


def test_the_first_ten_nodes_left_are_named() -> None:
    left = tuple(f"node{index}" for index in range(12))
    with pytest.raises(AcceleratorNotUsable) as error:
        judge(MUST, from_nodes(MUST, 20, left))
    assert str(error.value).endswith(f"leaves 12 of 20 nodes on the CPU: {', '.join(left[:10])} and 2 more")


def test_prefer_needs_one_node() -> None:
    judge(PREFER, from_nodes(PREFER, 3, ("conv", "nms")))
    with pytest.raises(AcceleratorNotUsable, match=r"^npu took none of the 2 nodes$"):
        judge(PREFER, from_nodes(PREFER, 2, ("conv", "nms")))


@pytest.mark.parametrize("require", ["must", "prefer"])
def test_no_evidence_is_no_use(require: Literal["must", "prefer"]) -> None:
    wanted = AcceleratorOptions(provider="npu", require=require)
    with pytest.raises(AcceleratorNotUsable, match="took none of the 0 nodes"):
        judge(wanted, from_nodes(wanted, 0, ()))


def test_a_reason_that_is_known_is_given() -> None:
    with pytest.raises(AcceleratorNotUsable, match=r"^the device is unplugged$"):
        judge(PREFER, Placement("npu", reason="the device is unplugged"))


def test_an_accelerator_that_was_lost_has_no_nodes_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    x = TensorSpec("x", "FP32", (-1,))
    on_cpu = FakeRuntime(lambda inputs: inputs, [x], [x])
    runtime = FallbackRuntime(
        Path("m.onnx"), Unplugged([x], [x], placement=Placement("npu", 3, 2, ("nms",))), lambda: on_cpu
    )
    for runs in (1, 2):
        np.testing.assert_array_equal(runtime.run({"x": np.ones(2, np.float32)})["x"], np.ones(2, np.float32))
        assert on_cpu.runs == runs
    gone = Placement("npu", 3, 0, (), "npu failed while running; the model continues on the CPU: unplugged")
    assert runtime.placement == gone
    assert caplog.messages == [f"m.onnx: {gone.reason}"]


def test_a_model_that_was_closed_is_not_opened_on_the_cpu() -> None:
    runtime = FallbackRuntime(Path("m.onnx"), Unplugged(), lambda: pytest.fail("it was opened"))
    runtime.close()
    with pytest.raises(ModelFailed, match="unplugged"):
        runtime.run({})


def test_a_model_file_that_has_gone_says_so() -> None:
    def gone() -> FakeRuntime:
        raise ConfigError.at(Path("m.onnx"), "no such file; expected a model")

    runtime = FallbackRuntime(Path("m.onnx"), Unplugged(), gone)
    with pytest.raises(ModelFailed, match=r"reopened after a failure: .*no such file; expected a model"):
        runtime.run({})


class Small(FakeRuntime):
    """An accelerator with room for four rows."""

    def __init__(self, spec: TensorSpec, function: Function = lambda inputs: inputs) -> None:
        super().__init__(function, [spec], [spec], placement=Placement("npu", 1, 1))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs.get("x", ())) > 4:
            raise AcceleratorFailed("out of memory", is_of_shapes=None)
        return super().run(inputs)


def test_only_the_shapes_that_an_accelerator_refuses_run_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    x = TensorSpec("x", "FP32", (-1,))
    small, on_cpu = Small(x), FakeRuntime(lambda inputs: inputs, [x], [x])
    runtime = FallbackRuntime(Path("m.onnx"), small, lambda: on_cpu)
    for rows, runs in ((3, 0), (5, 1), (5, 2), (4, 2), (6, 3), (1, 3)):
        assert len(runtime.run({"x": np.ones(rows, np.float32)})["x"]) == rows
        assert on_cpu.runs == runs
    assert runtime.placement.nodes_on_accelerator == 1
    assert runtime.placement.refused == {((5,),), ((6,),)}
    said = [f"m.onnx: npu refuses 'x' [{rows}], which the CPU runs: out of memory" for rows in (5, 6)]
    assert caplog.messages == said
    with pytest.raises(InvalidRequest):
        runtime.run({"y": np.ones(5, np.float32)})
    runtime.close()
    with pytest.raises(ModelFailed):
        runtime.run({"x": np.ones(5, np.float32)})


def test_an_accelerator_is_kept_for_a_model_that_takes_no_size_of_1() -> None:
    """A convolution refuses less than its own width, wherever it runs."""

    def convolved(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if inputs["x"].shape[1] < 5:
            raise ValueError("narrower than the kernel")
        return inputs

    x = TensorSpec("x", "FP32", (-1, -1))
    on_cpu = FakeRuntime(convolved, [x], [x])
    runtime = FallbackRuntime(Path("m.onnx"), Small(x, convolved), lambda: on_cpu)
    for rows, runs in ((5, 1), (4, 1), (5, 2)):
        assert len(runtime.run({"x": np.ones((rows, 8), np.float32)})["x"]) == rows
        assert (on_cpu.runs, runtime.placement.nodes_on_accelerator) == (runs, 1)


def test_an_accelerator_that_refuses_ever_more_shapes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upwell.edge.runtimes.fallback_runtime._MOST_REFUSED", 2)
    x = TensorSpec("x", "FP32", (-1,))
    runtime = FallbackRuntime(Path("m.onnx"), Small(x), lambda: FakeRuntime(lambda inputs: inputs, [x], [x]))
    for rows, nodes in ((5, 1), (6, 1), (7, 0), (1, 0)):
        assert len(runtime.run({"x": np.ones(rows, np.float32)})["x"]) == rows
        assert runtime.placement.nodes_on_accelerator == nodes
    assert not runtime.placement.refused


class Unplugged(FakeRuntime):
    """An accelerator that was taken out."""

    def __init__(
        self, inputs: Sequence[TensorSpec] = (), outputs: Sequence[TensorSpec] = (), placement: Placement | None = None
    ) -> None:
        super().__init__(lambda inputs: inputs, inputs, outputs, placement=placement)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise AcceleratorFailed("unplugged")
