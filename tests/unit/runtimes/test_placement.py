"""What a placement means for the model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.options import AcceleratorOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable, from_nodes, judge, lost

MUST = AcceleratorOptions(provider="npu", require="must")
PREFER = AcceleratorOptions(provider="npu")


def test_must_needs_every_node() -> None:
    judge(MUST, from_nodes(MUST, 3, ()))
    with pytest.raises(AcceleratorNotUsable, match=r"'npu' is a must and leaves 1 of 3 nodes on the CPU: nms$"):
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
    gone = lost(Path("m.onnx"), Placement("npu", 3, 2, ("nms",)), "unplugged")
    assert gone == Placement("npu", 3, 0, (), "npu failed while running, the model goes on on the CPU: unplugged")
    assert caplog.messages == [f"m.onnx: {gone.reason}"]
