"""What a placement means for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.runtimes.fallback_runtime import FallbackRuntime
from upwell.edge.runtimes.placement import AcceleratorFailed, AcceleratorNotUsable, from_nodes, judge
from upwell.edge.runtimes.runtime_options import AcceleratorOptions
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.tensors import Array, TensorSpec

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


class Unplugged(FakeRuntime):
    """An accelerator that was taken out."""

    def __init__(
        self, inputs: Sequence[TensorSpec] = (), outputs: Sequence[TensorSpec] = (), placement: Placement | None = None
    ) -> None:
        super().__init__(lambda inputs: inputs, inputs, outputs, placement=placement)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise AcceleratorFailed("unplugged")
