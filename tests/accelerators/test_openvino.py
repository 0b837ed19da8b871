"""ONNX Runtime with Intel's OpenVINO, on its CPU device.

A device that is not here, a bad one and `AUTO` leave a line in OpenVINO's log and run on ONNX Runtime's CPU; each way
is shown twice: as ONNX Runtime lets it pass, and as it is named here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.accelerators.environment import needs
from tests.accelerators.record import record

needs("openvino")

import onnxruntime  # noqa: E402  (only where the module is not skipped)

from tests.accelerators.onnx_models import chain, fixed_digits, mixed_chain  # noqa: E402  (as above)
from upwell.edge.runtimes.base import Placement  # noqa: E402  (as above)
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime, survey  # noqa: E402  (as above)
from upwell.edge.runtimes.placement import AcceleratorNotUsable  # noqa: E402  (as above)
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions  # noqa: E402  (as above)
from upwell.tools.demo.digit_data import ASSETS, heldout  # noqa: E402  (as above)

ROW = "OpenVINO provider, CPU device"
OPENVINO = "OpenVINOExecutionProvider"
REFUSED = "Hardmax"
COUNT = 200


def openvino(device: str = "CPU", require: Any = "prefer", **options: str) -> AcceleratorOptions:
    return AcceleratorOptions(provider="openvino", require=require, options={"device_type": device, **options})


def refusal(path: Path, wanted: AcceleratorOptions) -> str:
    with pytest.raises(AcceleratorNotUsable) as error:
        OnnxRuntime(path, None, wanted)
    return str(error.value)


def bare_session(path: Path, device: str) -> Any:
    """As ONNX Runtime makes it, without any of the checks."""
    chain = [(OPENVINO, {"device_type": device}), "CPUExecutionProvider"]
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return onnxruntime.InferenceSession(str(path), settings, providers=chain)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return fixed_digits(tmp_path)


@pytest.mark.parametrize("require", ["must", "prefer"])
def test_the_cpu_device_takes_every_node_and_answers_as_the_cpu(digits: Path, require: str) -> None:
    there, here = OnnxRuntime(digits, None, openvino(require=require)), OnnxRuntime(digits)
    assert there.placement == Placement("openvino", 23, 23)
    rows = [(image / 255).astype(np.float32)[None, None] for image in heldout().images[:COUNT]]
    same = [there.run({"x": row})["logits"].argmax() == here.run({"x": row})["logits"].argmax() for row in rows]
    assert sum(same) >= 0.99 * COUNT


def test_a_model_of_varying_size_is_taken_too() -> None:
    there = OnnxRuntime(ASSETS / "edge" / "digits" / "model.onnx", None, openvino(require="must"))
    for rows in (1, 3):
        assert there.run({"x": np.zeros((rows, 1, 8, 8), np.float32)})["logits"].shape == (rows, 10)


def test_must_names_what_stays_behind(tmp_path: Path) -> None:
    path = chain(tmp_path, ["MatMul", "Sigmoid", REFUSED])
    assert OnnxRuntime(path, None, openvino()).placement == Placement("openvino", 3, 2, ("hardmax_2 (Hardmax)",))
    assert refusal(path, openvino(require="must")).endswith("leaves 1 of 3 nodes on the CPU: hardmax_2 (Hardmax)")


@pytest.mark.parametrize("device", ["NPU", "GPU", "WRONG", "AUTO:GPU", "GPU_FP16"])
@pytest.mark.parametrize("require", ["must", "prefer"])
def test_a_device_that_is_not_here_is_the_cpu_and_is_named(digits: Path, device: str, require: str) -> None:
    said = refusal(digits, openvino(device, require))
    assert said.startswith("OpenVINO finds no device ")
    assert said.endswith("it finds: CPU")


@pytest.mark.parametrize("device", ["NPU", "AUTO", "WRONG"])
def test_onnxruntime_lets_them_pass(digits: Path, device: str) -> None:
    session = bare_session(digits, device)
    where = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    assert where == {"CPUExecutionProvider"}
    assert session.run(None, {"x": np.zeros((1, 1, 8, 8), np.float32)})[0].shape == (1, 10)
    record(ROW, "traps", f"`device_type: {device}` is ONNX Runtime's CPU: refused by name")


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU,CPU", "HETERO:GPU,CPU", "MULTI:CPU,GPU", "AUTO:NPU,CPU"])
def test_where_openvino_chooses_the_device_nobody_knows_which(digits: Path, device: str) -> None:
    said = refusal(digits, openvino(device))
    assert "OpenVINO chooses a device, perhaps the CPU, and does not report which" in said
    assert "(OpenVINO finds: CPU)" in said


def test_one_device_by_another_name_is_no_choice(digits: Path) -> None:
    assert OnnxRuntime(digits, None, openvino("MULTI:CPU")).placement.nodes_on_accelerator == 23


def test_a_bad_option_is_a_reason(digits: Path) -> None:
    assert "Invalid OpenVINO EP option: nonsense" in refusal(digits, openvino(nonsense="1"))


def test_on_its_cpu_device_nothing_is_kept(digits: Path, tmp_path: Path) -> None:
    # It writes its cache anew at each load there, and does not load the contexts that it makes.
    OnnxRuntime(digits, None, openvino(require="must"), cache_dir=tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()


def test_coverage_equals_the_placement_of_the_profile(tmp_path: Path) -> None:
    for seed in range(12):
        path = mixed_chain(tmp_path, seed, REFUSED)
        assigned = survey(path, RuntimeOptions(), openvino(), by_profile=False)
        profiled = survey(path, RuntimeOptions(), openvino(), by_profile=True)
        assert assigned.nodes == profiled.nodes, path.name
        operators = path.stem.split("_")[1:]
        assert len(assigned.left_on_cpu) >= operators.count(REFUSED)


# --- float16, for which the CPU has few kernels


def half_chain(folder: Path, *, with_names: bool = True) -> Path:
    """Four operators on float16; what no provider takes is computed in float32."""
    path = chain(folder, ["MatMul", "Relu", REFUSED, "MatMul"], with_names=with_names)
    model = onnx.load(str(path))
    for weight in model.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    path.write_bytes(model.SerializeToString())
    return path


def test_a_node_that_the_assignment_hides_is_left_on_the_cpu(tmp_path: Path) -> None:
    path = half_chain(tmp_path)
    recorded = bare_session(path, "CPU").get_provider_graph_assignment_info()
    assert {part.ep_name for part in recorded} == {OPENVINO}  # and the CPU runs one of them
    assert OnnxRuntime(path, None, openvino()).placement == Placement("openvino", 4, 3, ("hardmax_2 (Hardmax)",))
    assert refusal(path, openvino(require="must")).endswith("leaves 1 of 4 nodes on the CPU: hardmax_2 (Hardmax)")
    record(ROW, "traps", "float16: a node on the CPU that the graph assignment has nowhere: named")


def test_a_hidden_node_without_a_name_is_no_node_there(tmp_path: Path) -> None:
    path = half_chain(tmp_path, with_names=False)
    assert OnnxRuntime(path, None, openvino()).placement.nodes_on_accelerator == 3
    assert "leaves 1 of 4 nodes on the CPU: one that" in refusal(path, openvino(require="must"))


@pytest.mark.parametrize("by_profile", [False, True])
def test_coverage_of_float16_is_not_that_of_what_the_cpu_makes_of_it(tmp_path: Path, by_profile: bool) -> None:
    found = survey(half_chain(tmp_path), RuntimeOptions(), openvino(), by_profile=by_profile)
    assert [node.partition for node in found.nodes] == [0, 0, None, 1]
    assert [node.work for node in found.nodes] == [256, 32, 32, 256]
