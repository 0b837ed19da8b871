"""What is particular to ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.unit.models_for_tests import (
    identity,
    linear_elsewhere,
    linear_weights,
    refer,
    save,
    tensor,
    two_in_two_out,
    with_ir_version,
)
from upwell.edge.runtimes.onnx.node_assignment import records_assignment
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
from upwell.edge.runtimes.onnx.sessions import session_options
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import TensorSpec


def one_node(path: Path, operator: str, inputs: list[object], outputs: list[object], domain: str = "") -> Path:
    node = helper.make_node(operator, [i.name for i in inputs], [o.name for o in outputs], domain=domain)  # type: ignore[attr-defined]  # protobuf messages
    return save(path, [node], inputs, outputs, domains=[domain] if domain else [])


def test_custom_operators_are_named(tmp_path: Path) -> None:
    path = one_node(tmp_path / "custom.onnx", "Frobnicate", [tensor("x", [2])], [tensor("y", [2])], domain="vendor")
    with pytest.raises(ConfigError, match=rf"{re.escape(str(path))}: .*Frobnicate"):
        OnnxRuntime(path)


NO_NODES = pytest.mark.skipif(not records_assignment(), reason="this ONNX Runtime is not asked for names of nodes")


@pytest.mark.parametrize("kind", [pytest.param("node", marks=NO_NODES), "output"])
def test_names_that_are_no_text_are_refused(tmp_path: Path, kind: str) -> None:
    node = helper.make_node("Identity", ["x"], ["NAME" if kind == "output" else "y"], name="NAME")
    path = save(tmp_path / "m.onnx", [node], [tensor("x", [2])], [tensor(node.output[0], [2])])
    path.write_bytes(path.read_bytes().replace(b"NAME", b"N\xbbM\xff"))
    with pytest.raises(ConfigError, match="a name that is not UTF-8"):
        OnnxRuntime(path)


def test_a_newer_ir_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="IR version: 99"):
        OnnxRuntime(with_ir_version(identity(tmp_path), 99))


def test_outputs_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    path = one_node(tmp_path / "sequence.onnx", "SequenceConstruct", [tensor("x", [2])], [sequence])
    with pytest.raises(ConfigError, match=r"'y' is seq\(tensor\(float\)\)"):
        OnnxRuntime(path)


def test_optional_inputs_are_refused(tmp_path: Path) -> None:
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    path = one_node(
        tmp_path / "optional.onnx", "OptionalGetElement", [helper.make_value_info("x", optional)], [tensor("y", [2])]
    )
    with pytest.raises(ConfigError, match=r"'x' is optional\(tensor\(float\)\)"):
        OnnxRuntime(path)


def test_a_caller_cannot_replace_a_weight(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "weight"], ["y"])
    inputs = [tensor("x", [2]), tensor("weight", [2])]
    path = save(tmp_path / "m.onnx", [add], inputs, [tensor("y", [2])], {"weight": np.ones(2, np.float32)})
    runtime = OnnxRuntime(path)
    assert [spec.name for spec in runtime.inputs] == ["x"]
    x = np.zeros(2, np.float32)
    with pytest.raises(InvalidRequest, match="unknown input 'weight'"):
        runtime.run({"x": x, "weight": x})
    np.testing.assert_array_equal(runtime.run({"x": x})["y"], [1, 1])


def test_dimensions_of_one_name_must_agree(tmp_path: Path) -> None:
    runtime = OnnxRuntime(two_in_two_out(tmp_path))
    with pytest.raises(InvalidRequest, match="'a' and 'b' must agree in dimension 'rows', got 2 and 5"):
        runtime.run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((5, 3), np.float32)})


def test_unnamed_dimensions_that_do_not_fit_are_a_failure_of_the_model(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    path = save(tmp_path / "m.onnx", [node], [tensor("a", [None]), tensor("b", [None])], [tensor("y", [None])])
    runtime = OnnxRuntime(path)
    assert runtime.inputs == (TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "FP32", (-1,)))
    with pytest.raises(ModelFailed, match=r"m\.onnx: .*Add"):
        runtime.run({"a": np.zeros(2, np.float32), "b": np.zeros(5, np.float32)})


def test_a_value_that_the_model_cannot_take_is_the_callers_mistake(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    path = save(
        tmp_path / "m.onnx", [node], [tensor("x", ["n"], "INT64")], [tensor("y", ["n"])], {"table": np.ones(4, "f4")}
    )
    runtime = OnnxRuntime(path)
    with pytest.raises(InvalidRequest, match="out of data bounds"):
        runtime.run({"x": np.array([9])})
    np.testing.assert_array_equal(runtime.run({"x": np.array([3])})["y"], [1])


def test_a_failed_run_writes_nothing_to_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runtime = OnnxRuntime(two_in_two_out(tmp_path))
    with pytest.raises(InvalidRequest):
        runtime.run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((5, 3), np.float32)})
    assert capfd.readouterr() == ("", "")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    runtime = OnnxRuntime(identity(tmp_path, "BYTES", ("n",)))
    with pytest.raises(InvalidRequest, match="'x' must be UTF-8 text"):
        runtime.run({"x": np.array([b"fine", b"\xff"], object)})
    words = np.array([b"fine", "é".encode()], object)
    np.testing.assert_array_equal(runtime.run({"x": words})["y"], words)


def test_bfloat16_passes_beside_other_numbers(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("a", "c"), ("b", "d"), ("s", "t"))]
    shape = ("n", 3)
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [tensor("a", shape, "BF16"), tensor("b", shape, "INT64"), tensor("s", (), "BF16")],
        [tensor("c", shape, "BF16"), tensor("d", shape, "INT64"), tensor("t", (), "BF16")],
    )
    a = np.arange(12).reshape(2, 2, 3)[:, 0].astype(ml_dtypes.bfloat16)
    b, s = np.arange(6).reshape(2, 3), np.array(0.5, ml_dtypes.bfloat16)
    runtime = OnnxRuntime(path)
    answer = runtime.run({"a": a, "b": b, "s": s})
    np.testing.assert_array_equal(answer["c"], a)
    np.testing.assert_array_equal(answer["d"], b)
    assert (answer["t"].shape, float(answer["t"])) == ((), 0.5)
    answer["d"][:] = 0
    np.testing.assert_array_equal(runtime.run({"a": a, "b": b, "s": s})["d"], b)


def test_bfloat16_beside_strings_is_refused_at_load(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("a", "c"), ("b", "d"))]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [tensor("a", [1], "BF16"), tensor("b", [1], "BYTES")],
        [tensor("c", [1], "BF16"), tensor("d", [1], "BYTES")],
    )
    with pytest.raises(ConfigError, match="mixes BF16 and string tensors"):
        OnnxRuntime(path)


def test_sessions_spare_the_battery() -> None:
    settings = session_options(Path("any.onnx"), RuntimeOptions(threads=3), {})
    assert settings.intra_op_num_threads == 3
    assert settings.inter_op_num_threads == 1
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_scalars_pass(tmp_path: Path) -> None:
    runtime = OnnxRuntime(identity(tmp_path, "FP32", ()))
    answer = runtime.run({"x": np.array(3, np.float32)})["y"]
    assert answer.shape == ()
    assert answer == 3


@pytest.mark.parametrize("location", ["weights.bin", "deeper/weights.bin", "./weights.bin", "link.bin"])
def test_weights_beside_the_model_are_read(tmp_path: Path, location: str) -> None:
    weights, bias = linear_weights()
    (tmp_path / "deeper").mkdir()
    for path in (tmp_path / "weights.bin", tmp_path / "deeper" / "weights.bin"):
        path.write_bytes(weights.tobytes())
    (tmp_path / "link.bin").symlink_to(tmp_path / "weights.bin")
    x = np.ones((1, 8), np.float32)
    scores = OnnxRuntime(linear_elsewhere(tmp_path, location)).run({"x": x})["scores"]
    np.testing.assert_allclose(scores, x @ weights + bias, rtol=1e-4)


@pytest.mark.skipif(
    not hasattr(onnxruntime.SessionOptions, "add_external_initializers_from_files_in_memory"),
    reason="ONNX Runtime before 1.24 maps such files, whatever it is told",
)
def test_a_running_model_does_not_see_what_is_written_over_its_weights(tmp_path: Path) -> None:
    """As when a new model is copied over it. A mapping of the file would change the answers, or end the process."""
    table = np.ones((1000, 16), np.float32)
    (tmp_path / "weights.bin").write_bytes(table.tobytes())
    node = helper.make_node("Gather", ["table", "rows"], ["y"])  # its weights are not packed into other memory
    path = save(tmp_path / "m.onnx", [node], [tensor("rows", [2], "INT64")], [tensor("y", [2, 16])], {"table": table})
    model = onnx.load(str(path))
    refer(model.graph.initializer[0], "weights.bin")
    path.write_bytes(model.SerializeToString())
    runtime = OnnxRuntime(path)
    (tmp_path / "weights.bin").write_bytes((7 * table).tobytes())
    np.testing.assert_array_equal(runtime.run({"rows": np.array([0, 999])})["y"], np.ones((2, 16)))


@pytest.mark.parametrize("location", ["../secret.bin", "gone.bin", "\0"])
def test_weights_elsewhere_are_refused_before_the_runtime_reads_them(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(linear_weights()[0].tobytes())
    (tmp_path / "model").mkdir()
    path = linear_elsewhere(tmp_path / "model", location)
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}: external weights .* are (refused|missing); "):
        OnnxRuntime(path)
