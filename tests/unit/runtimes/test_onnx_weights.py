"""External weights: only from beside the model, whatever the runtime itself would read."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.unit.models_for_tests import identity, linear, linear_weights, save, slow, tensor
from upwell.edge.runtimes.onnx import OnnxRuntime
from upwell.edge.runtimes.onnx_weights import MODEL, Fields, check_weights
from upwell.shared.errors import ConfigError


def refer(made: Any, location: str) -> None:
    """Make a tensor message refer to a file instead of holding its numbers."""
    made.ClearField("raw_data")
    made.data_location = onnx.TensorProto.EXTERNAL
    del made.external_data[:]
    made.external_data.add(key="offset", value="0")
    made.external_data.add(key="location", value=location)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's directory with its weights, those of another file outside, and links to both."""
    weights, _ = linear_weights()
    inside = tmp_path / "model"
    (inside / "deeper").mkdir(parents=True)
    for path in (inside / "weights.bin", inside / "deeper" / "weights.bin", tmp_path / "secret.bin"):
        path.write_bytes(weights.tobytes())
    (inside / "link.bin").symlink_to(inside / "weights.bin")
    (inside / "circle.bin").symlink_to(inside / "circle.bin")
    (inside / "escape.bin").symlink_to(tmp_path / "secret.bin")
    return inside


def with_weights_at(folder: Path, location: str) -> Path:
    path = linear(folder)
    model = onnx.load(str(path))
    refer(model.graph.initializer[0], location)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["weights.bin", "deeper/weights.bin", "./weights.bin", "link.bin"])
def test_weights_beside_the_model_are_read(folder: Path, location: str) -> None:
    x = np.ones((1, 8), np.float32)
    weights, bias = linear_weights()
    scores = OnnxRuntime(with_weights_at(folder, location)).run({"x": x})["scores"]
    np.testing.assert_allclose(scores, x @ weights + bias, rtol=1e-4)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "{}/secret.bin", "escape.bin", "deeper/../../secret.bin", "..", ""]
)
def test_weights_elsewhere_are_refused(folder: Path, location: str) -> None:
    path = with_weights_at(folder, location.format(folder.parent))
    with pytest.raises(ConfigError, match="weights in") as error:
        OnnxRuntime(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("location", ["", "gone.bin", "*/_ORT_MEM_ADDR_/*", "weights.bin\0", "x" * 5000])
def test_weights_that_are_no_file_are_refused(folder: Path, location: str) -> None:
    with pytest.raises(ConfigError, match="weights in"):
        OnnxRuntime(with_weights_at(folder, location))


def _constant(location: str) -> Any:
    made = numpy_helper.from_array(np.ones((2, 2), np.float32), "value")
    refer(made, location)
    return helper.make_node("Constant", [], ["y"], value=made)


def test_weights_of_constants_and_inner_graphs_are_found(tmp_path: Path) -> None:
    inner = helper.make_graph([_constant("../inner.bin")], "inner", [], [tensor("y", [2, 2])])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    for node in (_constant("../outer.bin"), branch):
        path = save(tmp_path / "m.onnx", [node], [tensor("x", [], "BOOL")], [tensor("y", [2, 2])])
        with pytest.raises(ConfigError, match="must be a file beside the model"):
            check_weights(path)


def test_weights_of_functions_are_found(tmp_path: Path) -> None:
    path = identity(tmp_path)
    model = onnx.load(str(path))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Own", [], ["y"], [_constant("../function.bin")], opsets))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="must be a file beside the model"):
        check_weights(path)


def test_sparse_weights_are_found(tmp_path: Path) -> None:
    path = identity(tmp_path)
    model = onnx.load(str(path))
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    refer(values, "../sparse.bin")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="must be a file beside the model"):
        check_weights(path)


def test_every_way_to_a_tensor_is_walked() -> None:
    """Against the schema itself: a message type that can lead to a tensor is in the table, with all its fields."""

    def ways(descriptor: Any) -> dict[int, Any]:
        return {
            field.number: field.message_type
            for field in descriptor.fields
            if field.message_type is not None and field.message_type.name in leads
        }

    # Training graphs are not loaded; type denotations and quantization notes hold no tensors.
    leads = {"GraphProto", "NodeProto", "AttributeProto", "TensorProto", "SparseTensorProto", "FunctionProto"}
    seen: set[str] = set()

    def compare(descriptor: Any, fields: Fields) -> None:
        if descriptor.name in seen:
            return
        seen.add(descriptor.name)
        if descriptor.name == "TensorProto":
            assert list(fields) == [descriptor.fields_by_name["external_data"].number]
            return
        expected = ways(descriptor)
        assert set(fields) == set(expected), descriptor.name
        for number, inner in expected.items():
            compare(inner, fields[number])

    compare(onnx.ModelProto.DESCRIPTOR, MODEL)
    assert seen - {"ModelProto"} == leads


def test_ordinary_models_pass(tmp_path: Path) -> None:
    for path in (linear(tmp_path), identity(tmp_path), slow(tmp_path, size=8, layers=3)):
        check_weights(path)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_nothing_but_config_errors_comes_out_of_damaged_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = linear(tmp_path_factory.getbasetemp())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = path.with_name("damaged.onnx")
    damaged.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with contextlib.suppress(ConfigError):
        check_weights(damaged)
