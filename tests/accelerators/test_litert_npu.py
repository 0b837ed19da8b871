"""LiteRT's way to an NPU, really run: Intel's compiler plugin and dispatcher on OpenVINO's CPU device.

It is no NPU: what it shows is the path, the evidence and the failures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.accelerators.environment import needs
from tests.accelerators.record import record

needs("litert_npu")

from ai_edge_litert import schema_py_generated as schema  # noqa: E402  (only where the module is not skipped)
from ai_edge_litert.compiled_model import CompiledModel  # noqa: E402  (as above)
from ai_edge_litert.options import HardwareAccelerator, Options  # noqa: E402  (as above)

from tests.unit.tflite_for_tests import Op, T, add, linear, mul, save, two_in_two_out  # noqa: E402  (as above)
from tests.unit.tflite_graphs_for_tests import mobile  # noqa: E402  (as above)
from upwell.edge.runtimes.placement import AcceleratorNotUsable  # noqa: E402  (as above)
from upwell.edge.runtimes.runtime_loader import coverage_of, load_runtime  # noqa: E402  (as above)
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions  # noqa: E402  (as above)
from upwell.edge.runtimes.tflite.npu_runtime import runs_on_npu  # noqa: E402  (as above)
from upwell.shared.errors import InvalidRequest, ModelFailed  # noqa: E402  (as above)
from upwell.tools.demo.digit_data import ASSETS  # noqa: E402  (as above)

ROW = "LiteRT NPU dispatch onto OpenVINO's CPU device"
DIGITS = ASSETS / "edge" / "digits" / "model.tflite"


def npu(**options: Any) -> AcceleratorOptions:
    """Intel's OpenVINO, on its CPU device unless `options` say another."""
    given = {"vendor": "intel_openvino", "graph_backend": "CPU", **options}
    return AcceleratorOptions(provider="litert_npu", require="must", options=given)


def test_the_digits_run_there_with_the_answers_of_the_cpu() -> None:
    there, cpu = load_runtime(DIGITS, RuntimeOptions(), npu()), load_runtime(DIGITS)
    given = np.random.default_rng(0).random((200, 1, 1, 8, 8), np.float32)
    answers = [(there.run({"x": x})["logits"], cpu.run({"x": x})["logits"]) for x in given]
    same = float(np.mean([a.argmax() == b.argmax() for a, b in answers]))
    error = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in answers)
    assert same >= 0.97
    assert error < 0.1
    assert (there.inputs, there.outputs, there.instances) == (cpu.inputs, cpu.outputs, 1)
    record(ROW, "with", f"{there.version}, openvino")
    record(ROW, "executed", "int8 digits")
    record(ROW, "agreement", f"argmax equal in {same:.1%} of 200, relative error at most {error:.3f}")


def test_a_float_model_runs_there(tmp_path: Path) -> None:
    model = mobile(tmp_path)
    x = np.random.default_rng(1).random((1, 8, 8, 3), np.float32)
    there = load_runtime(model, RuntimeOptions(), npu())
    np.testing.assert_allclose(there.run({"x": x})["scores"], load_runtime(model).run({"x": x})["scores"], atol=0.02)
    assert (there.placement.nodes, there.placement.nodes_on_accelerator) == (77, 77)
    record(ROW, "executed", "fp32 model of 77 nodes")
    record(ROW, "placement", "77/77: compiled for the NPU alone, and the dispatcher owns the buffers")


def test_several_inputs_and_outputs_without_a_signature(tmp_path: Path) -> None:
    there = load_runtime(two_in_two_out(tmp_path), RuntimeOptions(), npu())
    assert [(spec.name, spec.shape) for spec in there.inputs] == [("a", (1, 3)), ("b", (1, 3))]
    a, b = np.array([[1, 2, 3]], np.float32), np.array([[4, 5, 6]], np.float32)
    first = there.run({"b": b, "a": a})
    np.testing.assert_allclose(first["sum"], a + b)
    np.testing.assert_allclose(first["product"], a * b)
    there.run({"a": b, "b": b})
    np.testing.assert_allclose(first["sum"], a + b)


def test_a_shape_that_was_not_compiled_is_refused(tmp_path: Path) -> None:
    there = load_runtime(linear(tmp_path, rows=4), RuntimeOptions(), npu())
    with pytest.raises(InvalidRequest, match=r"'x' FP32 \[4, 8\] expected, got float32 \[2, 8\]"):
        there.run({"x": np.zeros((2, 8), np.float32)})
    assert there.run({"x": np.zeros((4, 8), np.float32)})["scores"].shape == (4, 3)
    there.close()
    there.close()
    with pytest.raises(ModelFailed, match="closed"):
        there.run({"x": np.zeros((4, 8), np.float32)})


def test_the_cpu_allowed_beside_the_npu_is_a_lie_that_the_buffers_give_away() -> None:
    options = Options(hardware_accelerators=HardwareAccelerator.NPU | HardwareAccelerator.CPU)
    options.intel_openvino_options.graph_backend = options.intel_openvino_options.GRAPH_BACKEND.NPU
    model = CompiledModel.from_file(str(DIGITS), options=options)
    assert model.is_fully_accelerated()  # and there is no NPU here
    assert not runs_on_npu(model)
    options.hardware_accelerators = HardwareAccelerator.NPU
    options.intel_openvino_options.graph_backend = options.intel_openvino_options.GRAPH_BACKEND.CPU
    assert runs_on_npu(CompiledModel.from_file(str(DIGITS), options=options))
    record(ROW, "traps", "`NPU|CPU` on the CPU that says `is_fully_accelerated`: its buffers are host memory only")


@pytest.mark.parametrize("backend", ["NPU", "GPU"])
def test_a_device_that_is_not_there_is_a_reason(backend: str) -> None:
    with pytest.raises(AcceleratorNotUsable, match="plugin takes every node: check the device") as error:
        load_runtime(DIGITS, RuntimeOptions(), npu(graph_backend=backend))
    assert "kLiteRtHwAcceleratorCpu" not in str(error.value)
    with pytest.raises(AcceleratorNotUsable, match="did not compile"):
        coverage_of(DIGITS, RuntimeOptions(), npu(graph_backend=backend))
    record(ROW, "no device", "refused at load: the model does not compile")


def test_an_option_that_openvino_does_not_know_is_a_reason() -> None:
    with pytest.raises(AcceleratorNotUsable, match="check the device, its driver and its options"):
        load_runtime(DIGITS, RuntimeOptions(), npu(**{"configs_map.NONSENSE": "1"}))


def partly_supported(directory: Path) -> Path:
    """ADD, ROUND, MUL: the plugin has no ROUND."""
    tensors = [T(name, (1, 4)) for name in "xabc"]
    operators = [add(0, 0, 1), Op(schema.BuiltinOperator.ROUND, (1,), (2,)), mul(2, 0, 3)]
    return save(directory / "partly.tflite", tensors, operators, [0], [3])


def test_nodes_that_the_plugin_leaves_are_named(tmp_path: Path) -> None:
    model = partly_supported(tmp_path)
    with pytest.raises(AcceleratorNotUsable, match="leaves 1 of 3 nodes on the CPU: 1 ROUND b"):
        load_runtime(model, RuntimeOptions(), npu())
    coverage = coverage_of(model, RuntimeOptions(), npu())
    assert coverage.source == "partition plan"
    assert [node.partition for node in coverage.nodes] == [0, None, 1]
    record(ROW, "placement", "what the plugin leaves is named by its partition plan")


def test_coverage_of_a_model_that_compiles() -> None:
    coverage = coverage_of(DIGITS, RuntimeOptions(), npu())
    assert (coverage.source, len(coverage.nodes), coverage.node_share, coverage.partitions) == (
        "compiled model",
        10,
        1.0,
        1,
    )


def test_an_npu_that_fails_while_running_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    there = load_runtime(DIGITS, RuntimeOptions(), npu())
    x = np.random.default_rng(3).random((1, 1, 8, 8), np.float32)

    def unplugged(*_: object) -> None:
        raise RuntimeError("the device is gone")

    # LiteRT has no device here that could be taken away.
    monkeypatch.setattr(CompiledModel, "run_by_index", unplugged)
    answer = there.run({"x": x})["logits"]
    monkeypatch.undo()
    np.testing.assert_array_equal(answer, load_runtime(DIGITS).run({"x": x})["logits"])
    assert there.placement.nodes_on_accelerator == 0
    assert "the device is gone" in there.placement.reason
    np.testing.assert_array_equal(there.run({"x": x})["logits"], answer)


def test_a_batch_is_what_the_file_gives_as_its_example(tmp_path: Path) -> None:
    model = linear(tmp_path)
    assert load_runtime(model, RuntimeOptions(batch=1), npu()).inputs[0].shape == (1, 8)
    with pytest.raises(AcceleratorNotUsable, match="litert_npu compiles this model for 1 rows, not `batch: 2`"):
        load_runtime(model, RuntimeOptions(batch=2), npu())
