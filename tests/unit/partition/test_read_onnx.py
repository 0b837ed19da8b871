"""ONNX files as graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.models.legal_cuts import prefix_cuts
from tests.unit.models_for_tests import linear_elsewhere, two_in_two_out
from tests.unit.partition.damage import outcome
from tests.unit.partition.onnx_parts_for_tests import (
    LIGHT,
    QUANTIZATION,
    body,
    dequantize,
    model,
    op,
    quantize,
    value,
    weights,
)  # fmt: skip
from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Graph, Node, Tensor
from upwell.shared.partition.read_graph import read_graph

ZOO = {
    "light_bvlc_alexnet": (40, 14, 0.66e9),
    "light_densenet121": (1746, 242, 2.9e9),
    "light_inception_v1": (237, 84, 1.44e9),
    "light_inception_v2": (916, 94, 2.04e9),
    "light_resnet50": (415, 61, 4.12e9),
    "light_shufflenet": (446, 75, 0.137e9),
    "light_squeezenet": (105, 39, 0.354e9),
    "light_vgg19": (82, 25, 19.65e9),
    "light_zfnet512": (38, 14, 1.486e9),
}
"""Operators, nodes after contraction, and multiply-adds (as published, but for what is elementwise)."""


def node(graph: Graph, name: str) -> Node:
    (found,) = [one for one in graph.nodes if one.name == name]
    return found


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_graph(path)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert "\n" not in problem.message
    return problem.message


@pytest.mark.parametrize("name", ZOO)
def test_networks_of_the_zoo(name: str) -> None:
    operators, nodes, work = ZOO[name]
    graph = read_graph(LIGHT / f"{name}.onnx")
    file = onnx.load(str(LIGHT / f"{name}.onnx")).graph
    assert len(graph.nodes) == operators
    weights_of_file = {one.name for one in file.initializer}
    assert graph.inputs == tuple(one.name for one in file.input if one.name not in weights_of_file)
    assert graph.outputs == tuple(one.name for one in file.output)
    contracted = contract(graph)
    assert len(contracted.nodes) == nodes
    assert prefix_cuts(contracted) == list(range(1, nodes))
    assert all(tensor.is_sized for tensor in contracted.tensors.values())
    assert sum(one.work for one in contracted.nodes) == pytest.approx(work, rel=0.01)


def test_weights_are_no_part_of_it_however_they_are_kept(tmp_path: Path) -> None:
    """Initializers that two nodes share, that are listed as inputs, sparse ones, and what is computed from them."""
    nodes = [
        op("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2, np.float32)), name="constant"),
        op("Mul", ["w", "two"], ["w2"], name="doubled"),
        op("MatMul", ["x", "w"], ["a"], name="first"),
        op("MatMul", ["a", "w"], ["b"], name="second"),
        op("Add", ["b", "w2"], ["c"], name="third"),
        op("Add", ["c", "sparse"], ["y"], name="fourth"),
    ]
    inputs = [value("w", (4, 4)), value("x", (4, 4))]
    path = model(tmp_path / "m.onnx", nodes, inputs, [value("y")], {"w": weights(4, 4)})
    file = onnx.load(str(path))
    numbers = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [5.0])
    file.graph.sparse_initializer.append(
        helper.make_sparse_tensor(numbers, helper.make_tensor("at", TensorProto.INT64, [1], [3]), [4, 4])
    )
    path.write_bytes(file.SerializeToString())
    graph = read_graph(path)
    assert graph.inputs == ("x",)
    assert {one.name: one.inputs for one in graph.nodes} == {
        "constant": (), "doubled": (), "first": ("x",), "second": ("a",), "third": ("b",), "fourth": ("c",),
    }  # fmt: skip
    assert [one.name for one in graph.nodes if one.is_free] == ["constant", "doubled"]
    assert node(graph, "first").work == 4 * 4 * 4


def test_an_operator_that_draws_numbers_is_not_free(tmp_path: Path) -> None:
    nodes = [
        op("RandomNormal", [], ["noise"], shape=[2], name="noise"),
        op("Add", ["x", "noise"], ["y"], name="add"),
    ]
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (2,))], [value("y")]))
    assert not node(graph, "noise").is_free
    assert node(graph, "add").inputs == ("x", "noise")


def test_a_constant_that_is_an_output_is_made_by_its_operator(tmp_path: Path) -> None:
    nodes = [
        op("Neg", ["w"], ["negative"], name="neg"),
        op("Add", ["x", "negative"], ["y"], name="add"),
    ]
    outputs = [value("y"), value("negative"), value("x"), value("w")]
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (2,))], outputs, {"w": weights(2)}))
    assert not node(graph, "neg").is_free
    assert node(graph, "add").inputs == ("x", "negative")
    assert graph.outputs == ("y", "negative", "x", "w")
    assert graph.tensors["w"] == Tensor("w", "FP32", (2,))
    assert set(contract(graph).tensors) >= {"y", "negative", "x", "w"}


def test_optional_inputs_that_are_absent_are_left_out(tmp_path: Path) -> None:
    nodes = [op("Clip", ["x", "", "most"], ["y"], name="clip")]
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (2,)), value("most", ())], [value("y")]))
    assert node(graph, "clip").inputs == ("x", "most")


def choice(name: str, condition: str, then: Any, otherwise: Any) -> Any:
    return op("If", [condition], [name], then_branch=then, else_branch=otherwise, name=name)


def test_what_bodies_capture_at_any_depth_is_an_input(tmp_path: Path) -> None:
    """`near` is read one level down, `far` two; `own` is made inside, `w` a weight, `inner` an input of the body."""
    deep = body([op("Add", ["own", "far"], ["d"])], [], [value("d")])
    near = body([op("Mul", ["near", "w"], ["own"]), choice("n", "c", deep, deep)], [], [value("n")])
    other = body([op("Identity", ["near"], ["o"])], [], [value("o")])
    step = body(
        [op("Add", ["inner", "far"], ["next"]), op("Identity", ["go"], ["on"])],
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("inner", (2,))],
        [value("on", (), TensorProto.BOOL), value("next", (2,))],
    )
    nodes = [
        op("Relu", ["x"], ["near"], name="near"),
        op("Neg", ["x"], ["far"], name="far"),
        choice("chosen", "c", near, other),
        op("Loop", ["count", "", "chosen"], ["y"], body=step, name="loop"),
    ]
    inputs = [value("x", (2,)), value("c", (), TensorProto.BOOL)]
    path = model(tmp_path / "m.onnx", nodes, inputs, [value("y", (2,))], {"w": weights(2), "count": np.int64(3)})
    graph = read_graph(path)
    assert node(graph, "chosen").inputs == ("c", "near", "far")
    assert node(graph, "loop").inputs == ("chosen", "far")
    cut = contract(graph)
    assert [one.name for one in cut.nodes] == ["near", "far", "chosen", "loop"]
    assert cut.crossing({0}) == ("x", "c", "near")


def test_functions_are_one_node_and_shapes_go_through_them(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [op("MatMul", ["a", "b"], ["p"]), op("Relu", ["p"], ["r"])]
    function = helper.make_function("own", "Layer", ["a", "b"], ["r"], nodes, [helper.make_opsetid("", 17)])
    nodes = [
        op("Layer", ["w", "w"], ["w2"], domain="own", name="weights"),
        op("Layer", ["x", "w"], ["h"], domain="own", name="layer"),
        op("Add", ["h", "w2"], ["y"], name="add"),
    ]
    path = model(
        tmp_path / "m.onnx", nodes, [value("x", ("rows", 4))], [value("y")], {"w": weights(4, 4)},
        functions=[function], opset_imports=opsets,
    )  # fmt: skip
    graph = read_graph(path)
    assert node(graph, "layer").op == "own:Layer"
    assert graph.tensors["h"].shape == ("rows", 4)
    assert not node(graph, "weights").is_free  # what a function does is not looked into
    assert node(graph, "add").inputs == ("h", "w2")


def test_open_dimensions_are_named_and_counted(tmp_path: Path) -> None:
    nodes = [
        op("Reshape", ["x", "windows"], ["w"], name="windows"),
        op("Transpose", ["w"], ["t"], name="turn", perm=[1, 0]),
        op("Concat", ["w", "w"], ["c"], name="twice", axis=0),
        op("NonZero", ["w"], ["n"], name="found"),
        op("Reshape", ["c", "flat"], ["y"], name="flat"),
    ]
    outputs = [value("y", ("other name",)), value("n", None, TensorProto.INT64), value("t")]
    constants = {"windows": np.array([-1, 5]), "flat": np.array([-1])}
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (None, 49, 5))], outputs, constants))
    shapes = {name: tensor.shape for name, tensor in graph.tensors.items()}
    assert shapes["x"] == ("batch", 49, 5)
    assert shapes["w"] == ("49*batch", 5)
    assert shapes["t"] == (5, "49*batch")
    assert shapes["c"] == ("98*batch", 5)
    assert shapes["y"] == ("490*batch",)
    assert shapes["n"] == (2, "")  # it depends on the data
    assert not graph.tensors["n"].is_sized
    assert graph.tensors["w"].size_bytes() == 49 * 5 * 4
    assert graph.tensors["c"].size_bytes({"batch": 3}) == 3 * 98 * 5 * 4


def test_what_has_no_size_or_no_plain_type_cannot_cross(tmp_path: Path) -> None:
    nodes = [
        op("SequenceConstruct", ["x", "x"], ["s"], name="sequence"),
        op("Relu", ["x"], ["r"], name="relu"),
        op("SequenceInsert", ["s", "r"], ["s2"], name="insert"),
        op("ConcatFromSequence", ["s2"], ["y"], axis=0, name="concat"),
        op("Unknown", ["r"], ["u"], domain="elsewhere", name="custom"),
        op("Identity", ["u"], ["z"], name="last"),
    ]
    inputs = [value("x", (2,)), value("text", (2,), TensorProto.STRING)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("elsewhere", 1)]
    path = model(tmp_path / "m.onnx", nodes, inputs, [value("y"), value("z")], opset_imports=opsets)
    graph = read_graph(path)
    assert graph.tensors["s2"] == Tensor("s2", "SEQUENCE", None)
    assert graph.tensors["u"].shape is None
    assert not graph.tensors["text"].is_sized
    assert [one.members for one in contract(graph).nodes] == [(1,), (0, 2, 3), (4, 5)]


def test_quantized_tensors_are_what_is_read(tmp_path: Path) -> None:
    nodes = [
        dequantize("wq", "w"),
        quantize("x", "q0"),
        dequantize("q0", "x0"),
        op("MatMul", ["x0", "w"], ["a"], name="matmul"),
        quantize("a", "q1"),
        dequantize("q1", "a1"),
        op("Relu", ["a1"], ["b"], name="relu"),
        quantize("b", "q2"),
        dequantize("q2", "y"),
    ]
    constants = {**QUANTIZATION, "wq": np.ones((4, 4), np.uint8)}
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", ("rows", 4))], [value("y")], constants))
    assert [one.name for one in graph.nodes if one.is_free] == ["dequantize_w", "dequantize_x0", "dequantize_a1"]
    cut = contract(graph)
    assert [(one.name, one.inputs, one.outputs, one.members) for one in cut.nodes] == [
        ("quantize_x", ("x",), ("q0",), (1,)),
        ("matmul", ("q0",), ("q1",), (3, 4)),
        ("relu", ("q1",), ("y",), (6, 7, 8)),
    ]
    assert cut.tensors["q1"] == Tensor("q1", "UINT8", ("rows", 4))


def test_nodes_without_a_name_of_their_own_get_one_that_lasts(tmp_path: Path) -> None:
    nodes = [
        op("Relu", ["x"], ["a"]),
        op("Relu", ["a"], ["b"], name="twice"),
        op("Relu", ["b"], ["c"], name="twice"),
        op("Relu", ["c"], ["y"], name="Relu_0"),
    ]
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (2,))], [value("y")]))
    assert [one.name for one in graph.nodes] == ["Relu_0_", "Relu_1", "Relu_2", "Relu_0"]


def test_nodes_come_in_an_order_that_works_where_the_file_has_none(tmp_path: Path) -> None:
    nodes = [op("Neg", ["b"], ["y"], name="3"), op("Relu", ["x"], ["a"], name="1"), op("Exp", ["a"], ["b"], name="2")]
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (2,))], [value("y")]))
    assert [(one.name, one.members) for one in graph.nodes] == [("1", (1,)), ("2", (2,)), ("3", (0,))]
    assert graph.tensors["y"].shape == (2,)


def test_large_constants_of_integers_do_not_stop_inference(tmp_path: Path) -> None:
    """Their numbers are dropped before shapes are inferred, which also follows integers."""
    nodes = [
        op("Gather", ["x", "rows"], ["a"], name="gather"),
        op("Gather", ["rows", "few"], ["b"], name="some"),
        op("Gather", ["a", "b"], ["c"], name="again"),
        op("Reshape", ["c", "shape"], ["y"], name="shape"),
    ]
    constants = {"rows": np.arange(2000) % 4, "few": np.array([0, 1]), "shape": np.array([-1, 4])}
    graph = read_graph(model(tmp_path / "m.onnx", nodes, [value("x", (4, 8))], [value("y")], constants))
    assert graph.tensors["a"].shape == (2000, 8)
    assert graph.tensors["y"].shape == (4, 4)


def test_weights_elsewhere_must_lie_in_the_folder_and_are_not_read(tmp_path: Path) -> None:
    path = linear_elsewhere(tmp_path, "weights.bin")
    assert "weights.bin" in refused(path)
    (tmp_path / "weights.bin").write_bytes(b"")  # shorter than what the model says: nobody looks
    assert [one.work for one in read_graph(path).nodes] == [24, 3]
    assert "refused" in refused(linear_elsewhere(tmp_path, "../weights.bin"))


def test_invalid_models_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    x, y, path = value("x", (2,)), value("y"), tmp_path / "m.onnx"
    assert "no operators" in refused(model(path, [], [x], [x]))
    assert "reads 'nothing'" in refused(model(path, [op("Relu", ["nothing"], ["y"])], [x], [y]))
    assert "'y' is produced twice" in refused(
        model(path, [op("Relu", ["x"], ["y"]), op("Neg", ["x"], ["y"])], [x], [y])
    )
    assert "'x' is produced twice" in refused(model(path, [op("Relu", ["x"], ["x"])], [x], [x]))
    assert "output 'y'" in refused(model(path, [op("Relu", ["x"], ["z"])], [x], [y]))
    circle = [op("Add", ["x", "b"], ["a"]), op("Neg", ["a"], ["b"])]
    assert "form a cycle" in refused(model(path, circle, [x], [value("b")]))
    captured = body([op("Neg", ["nowhere"], ["n"])], [], [value("n")])
    assert "'nowhere'" in refused(model(path, [choice("y", "c", captured, captured)], [x, value("c")], [y]))


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    assert "no such file; expected a model" in refused(tmp_path / "none.onnx")
    (tmp_path / "model.pt").write_bytes(b"1")
    assert "expected .onnx, .tflite or .pt2" in refused(tmp_path / "model.pt")
    (tmp_path / "empty.onnx").touch()
    assert "empty" in refused(tmp_path / "empty.onnx")
    (tmp_path / "folder.onnx").mkdir()
    assert "no such file; expected a model" in refused(tmp_path / "folder.onnx")


def test_a_file_cut_short_anywhere_is_refused_or_a_graph(tmp_path: Path) -> None:
    whole = two_in_two_out(tmp_path).read_bytes()
    path = tmp_path / "short.onnx"
    outcomes = set()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        outcomes.add(outcome(path))
    assert outcomes == {0, 2}  # the versions that an ONNX file ends with may be missing


def test_random_damage_is_refused_or_a_graph(tmp_path: Path) -> None:
    whole = two_in_two_out(tmp_path).read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / "damaged.onnx"
    outcomes = set()
    for _ in range(300):
        data = bytearray(whole)
        for at in random.integers(len(data), size=3):
            data[at] = random.integers(256)
        path.write_bytes(data)
        outcomes.add(outcome(path))
    assert outcomes == {0, 2}
