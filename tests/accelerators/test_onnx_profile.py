"""An ONNX Runtime before 1.24 records no assignment: where the nodes run is read from the profile of one run.

JetPack's is such a one. OpenVINO's CPU device stands for the accelerator here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.accelerators.environment import needs
from tests.accelerators.record import record

needs("openvino")

from tests.accelerators.onnx_models import chain, fixed_digits  # noqa: E402  (where it is not skipped)
from upwell.edge.runtimes.onnx.node_assignment import records_assignment  # noqa: E402  (as above)
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime  # noqa: E402  (as above)
from upwell.edge.runtimes.placement import AcceleratorNotUsable  # noqa: E402  (as above)
from upwell.edge.runtimes.runtime_loader import coverage_of  # noqa: E402  (as above)
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions  # noqa: E402  (as above)

if records_assignment():
    pytest.skip("this ONNX Runtime records the assignment", allow_module_level=True)

ROW = "OpenVINO provider, CPU device, in ONNX Runtime before 1.24"
REFUSED = "Hardmax"


def openvino(require: Any = "prefer", device: str = "CPU") -> AcceleratorOptions:
    return AcceleratorOptions(provider="openvino", require=require, options={"device_type": device})


def test_the_profile_shows_the_fused_nodes(tmp_path: Path) -> None:
    placement = OnnxRuntime(fixed_digits(tmp_path), None, openvino("must")).placement
    assert (placement.nodes, placement.nodes_on_accelerator) == (1, 1)


def test_must_names_what_stays_behind(tmp_path: Path) -> None:
    path = chain(tmp_path, ["MatMul", "Sigmoid", REFUSED])
    placement = OnnxRuntime(path, None, openvino()).placement
    assert (placement.nodes_on_accelerator, placement.left_on_cpu) == (1, ("hardmax_2 (Hardmax)",))
    with pytest.raises(AcceleratorNotUsable, match=r"leaves 1 of 2 nodes on the CPU: hardmax_2 \(Hardmax\)$"):
        OnnxRuntime(path, None, openvino("must"))


@pytest.mark.parametrize("device", ["NPU", "AUTO", "WRONG"])
def test_a_device_that_is_not_here_is_named(tmp_path: Path, device: str) -> None:
    with pytest.raises(AcceleratorNotUsable, match="OpenVINO finds"):
        OnnxRuntime(fixed_digits(tmp_path), None, openvino(device=device))


def test_a_model_that_does_not_run_on_zeros_is_not_used(tmp_path: Path) -> None:
    from onnx import helper

    from tests.unit.models_for_tests import save, tensor

    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Gather", ["h", "i"], ["y"])]
    inputs = [tensor("x", [0]), tensor("i", [1], "INT64")]
    path = save(tmp_path / "m.onnx", nodes, inputs, [tensor("y", [1])])
    with pytest.raises(AcceleratorNotUsable):
        OnnxRuntime(path, None, openvino())


@pytest.mark.parametrize("with_names", [True, False])
@pytest.mark.parametrize("operators", [["MatMul", "Sigmoid", REFUSED], [REFUSED, "Tanh", "MatMul", "Sigmoid"]])
def test_coverage_counts_the_models_own_nodes(tmp_path: Path, operators: list[str], with_names: bool) -> None:
    # With nodes on both sides of one that stays behind, onnxruntime-openvino 1.23.0 crashes the process.
    found = coverage_of(chain(tmp_path, operators, with_names=with_names), RuntimeOptions(), openvino())
    assert found.source == "profile"
    assert [node.operator for node in found.nodes] == operators
    assert [node.operator for node in found.left_on_cpu] == [REFUSED]
    assert found.partitions == 1


def test_coverage_of_a_model_that_is_taken_whole(tmp_path: Path) -> None:
    whole = coverage_of(fixed_digits(tmp_path), RuntimeOptions(), openvino("must"))
    assert (len(whole.nodes), whole.node_share, whole.partitions) == (23, 1, 1)
    record(ROW, "placement", f"{len(whole.taken)} of {len(whole.nodes)}, by {whole.source}")


def test_the_answers_are_those_of_the_cpu(tmp_path: Path) -> None:
    path = chain(tmp_path, ["MatMul", "Add", "Sigmoid", REFUSED])
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    there, here = OnnxRuntime(path, None, openvino()), OnnxRuntime(path)
    np.testing.assert_allclose(there.run({"x": x})["y"], here.run({"x": x})["y"], rtol=1e-4)
