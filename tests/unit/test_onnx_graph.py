"""The main graph of an ONNX file, read without the `onnx` package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.backend import test as onnx_tests

from tests.unit.models_for_tests import linear, linear_elsewhere, refer, save, tensor
from upwell.shared.formats.onnx.file import BadOnnxFile, ExternalData
from upwell.shared.formats.onnx.graph import named_apart, read_graph
from upwell.tools.demo.digit_data import ASSETS

LIGHT = sorted((Path(onnx_tests.__path__[0]) / "data" / "light").glob("*.onnx"))
DEMO = sorted(ASSETS.glob("**/*.onnx"))


@pytest.mark.parametrize("path", [*DEMO, *LIGHT], ids=lambda path: path.stem)
def test_it_reads_what_onnx_reads(path: Path) -> None:
    graph, expected = read_graph(path), onnx.load(path, load_external_data=False).graph
    assert [(n.name, n.operator, n.domain, tuple(n.inputs), tuple(n.outputs)) for n in graph.nodes] == [
        (n.name, n.op_type, n.domain, tuple(n.input), tuple(n.output)) for n in expected.node
    ]
    known = {name for name in graph.constants if name in {one.name for one in expected.initializer}}
    assert known == {one.name for one in expected.initializer}
    for one in expected.initializer:
        constant = graph.constants[one.name]
        assert (constant.dtype, constant.shape) == (one.data_type, tuple(one.dims))
    for value in (*expected.input, *expected.output, *expected.value_info):
        if value.name not in graph.constants and value.type.tensor_type.HasField("shape"):
            sizes = (d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim)
            assert graph.shapes[value.name] == tuple(sizes)
            assert graph.dtypes[value.name] == value.type.tensor_type.elem_type


@pytest.mark.parametrize("way", ["raw", "numbers", "external"])
def test_small_integers_are_read_wherever_they_are(tmp_path: Path, way: str) -> None:
    numbers = np.array([[-128, 0, 127], [1, -1, 64]], np.int8)
    made = numpy_helper.from_array(numbers, "w")
    if way == "numbers":
        made = helper.make_tensor("w", made.data_type, numbers.shape, numbers.flatten().tolist())
    elif way == "external":
        (tmp_path / "weights.bin").write_bytes(b"????" + numbers.tobytes())
        refer(made, "weights.bin")
        made.external_data[0].value = "4"
        made.external_data.add(key="length", value="6")
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [tensor("y", [2, 3], "INT8")], [made])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    read = read_graph(path)
    assert read.constants["w"].shape == (2, 3)
    found = read.integers("w")
    assert found is not None
    np.testing.assert_array_equal(found, numbers.flatten())


def test_what_comes_in_pieces_is_put_together_as_protobuf_does(tmp_path: Path) -> None:
    """A body in two parts is one body; of raw numbers that come twice the last ones count."""
    first, last = (onnx.TensorProto(raw_data=data) for data in (b"\x01", b"\x02\x03"))
    weights = helper.make_tensor("w", onnx.TensorProto.INT8, [2], [0, 0])
    weights.ClearField("int32_data")
    pieces = b"".join(one.SerializeToString() for one in (weights, first, last))
    bodies = [onnx.GraphProto(node=[helper.make_node(op, [name], ["y"])]) for op, name in (("Relu", "a"), ("Neg", "b"))]
    attribute = b"".join(onnx.AttributeProto(g=body).SerializeToString() for body in bodies)
    node = delimited(5, attribute) + helper.make_node("If", ["c"], ["y"]).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(delimited(7, delimited(1, node) + delimited(5, pieces)))
    (expected,) = onnx.load(path).graph.node
    graph = read_graph(path)
    (body,) = graph.nodes[0].bodies
    assert (
        [one.operator for one in body.nodes] == [one.op_type for one in expected.attribute[0].g.node] == ["Relu", "Neg"]
    )
    assert graph.nodes[0].reads == ("c", "a", "b")
    numbers = graph.integers("w")
    assert numbers is not None
    assert numbers.tobytes() == onnx.load(path).graph.initializer[0].raw_data == b"\x02\x03"


def delimited(number: int, content: bytes) -> bytes:
    """A field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def test_floats_are_no_small_integers(tmp_path: Path) -> None:
    assert read_graph(linear(tmp_path)).integers("weights") is None
    assert read_graph(linear_elsewhere(tmp_path, "w.bin")).constants["weights"].external == ExternalData("w.bin", "0")


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x3a\x7f\x00", b"\x3b"])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(BadOnnxFile):
        read_graph(path)


def test_every_prefix_of_a_model_is_read_or_refused(tmp_path: Path) -> None:
    content, path = linear(tmp_path).read_bytes(), tmp_path / "cut.onnx"
    for size in range(1, len(content)):
        path.write_bytes(content[:size])
        try:
            read_graph(path)
        except BadOnnxFile:
            continue


def test_names_are_given_and_told_apart(tmp_path: Path) -> None:
    names = ["", "same", "same", "", "Relu_0", "same_2"]
    nodes = [
        helper.make_node("Relu", ["x" if not index else f"h{index}"], [f"h{index + 1}"], name=name)
        for index, name in enumerate(names)
    ]
    path = save(tmp_path / "m.onnx", nodes, [tensor("x", [2])], [tensor(f"h{len(names)}", [2])])
    named = onnx.load_from_string(named_apart(path.read_bytes()))
    found = [node.name for node in named.graph.node]
    assert (found[1], found[4], found[5]) == ("same", "Relu_0", "same_2")
    assert len(set(found)) == len(names)
    assert "" not in found
    for before, after in zip(onnx.load(path).graph.node, named.graph.node, strict=True):
        before.ClearField("name")
        after.ClearField("name")
        assert before == after
    session = onnxruntime.InferenceSession(named_apart(path.read_bytes()), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": np.array([-1, 2], np.float32)})[0], [0, 2])


@pytest.mark.parametrize("path", LIGHT[:3], ids=lambda path: path.stem)
def test_nothing_but_names_changes(path: Path) -> None:
    before, after = onnx.load(path), onnx.load_from_string(named_apart(path.read_bytes()))
    assert len({node.name for node in after.graph.node}) == len(after.graph.node)
    for one in (*before.graph.node, *after.graph.node):
        one.name = ""
    assert before == after
