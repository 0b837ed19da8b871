"""Halves of ONNX models: what each holds, takes and gives, and that both together are the whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.models.onnx_recomposing import BASIC, random_feed, recomposed, run, session_of
from tests.unit.partition.splitting import split_onnx
from upwell.shared.errors import ConfigError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Graph
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves, ModelHalf

HEADER = '<ir_version: 8, opset_import: ["" : 17, "own" : 1], producer_name: "someone">\n'


def written(folder: Path, text: str, **weights: list[float]) -> Path:
    """A model from ONNX's text form; weights are FP32, and left out of the text."""
    model = parser.parse_model(HEADER + text)
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.float32), name))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def making(graph: Graph, *tensors: str) -> frozenset[int]:
    """The smallest edge side on which these tensors are made."""
    found: set[int] = set()
    todo = [graph.producer[name] for name in tensors]
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            todo.extend(graph.producer[name] for name in graph.nodes[index].inputs if name in graph.producer)
    return frozenset(found)


def cut(path: Path, *tensors: str) -> Halves:
    """Both halves, the head just large enough to make these tensors; operators on their own, nothing fused."""
    graph = read_graph(path)
    return split_onnx(path, graph, making(graph, *tensors))


def model_of(half: ModelHalf) -> onnx.ModelProto:
    """The half, found to be a valid model."""
    model = onnx.ModelProto.FromString(half.files["model.onnx"])
    onnx.checker.check_model(model, full_check=True)
    assert [one.name for one in model.graph.output] == [one.name for one in half.outputs]
    return model


def names(values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    return [one.name for one in values]


def assert_recomposes(path: Path, halves: Halves, rows: int = 1) -> None:
    """To the bit, with the few optimizations that do not depend on the neighbours."""
    session = session_of(path, BASIC)
    feed = random_feed(session, rows)
    got = recomposed(halves, feed, BASIC)
    for name, array in run(session, feed).items():
        np.testing.assert_array_equal(got[name], array)


CHAIN = """
chain (float[rows, 3] x, float[rows, 3] extra) => (float[rows, 3] first, float[rows, 3] last) {
    a = Mul (x, w)
    b = Add (a, w)
    first = Relu (a)
    c = Sub (b, extra)
    d = Mul (c, v)
    last = Add (d, b)
}
"""
WEIGHTS = {"w": [1.0, -2.0, 3.0], "v": [0.5, 0.25, -1.0], "unused": [1.0]}


def test_halves_hold_their_operators_and_weights_and_no_others(tmp_path: Path) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    halves = cut(path, "b")
    head, tail = model_of(halves.head), model_of(halves.tail)
    assert [node.output[0] for node in head.graph.node] == ["a", "b"]
    assert [node.output[0] for node in tail.graph.node] == ["first", "c", "d", "last"]
    assert [one.name for one in head.graph.initializer] == ["w"]
    assert [one.name for one in tail.graph.initializer] == ["v"]
    assert_recomposes(path, halves)


def test_cut_tensors_come_before_what_the_caller_gives_and_gets(tmp_path: Path) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    halves = cut(path, "b", "first")
    head, tail = model_of(halves.head), model_of(halves.tail)
    assert halves.cut == ("b",)
    assert names(head.graph.input) == ["x"]
    assert names(head.graph.output) == ["b", "first"]
    assert names(tail.graph.input) == ["b", "extra"]
    assert names(tail.graph.output) == ["last"]
    assert [one.shape for one in halves.tail.inputs] == [("rows", 3), ("rows", 3)]
    assert_recomposes(path, halves, rows=2)


def test_an_output_that_crosses_is_given_once(tmp_path: Path) -> None:
    text = CHAIN.replace("(float[rows, 3] first, ", "(float[rows, 3] b, float[rows, 3] first, ")
    path = written(tmp_path, text, **WEIGHTS)
    halves = cut(path, "b")
    assert names(model_of(halves.head).graph.output) == ["a", "b"]
    assert names(model_of(halves.tail).graph.output) == ["first", "last"]
    assert_recomposes(path, halves)


def test_a_weight_that_both_halves_use_is_in_both(tmp_path: Path) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    halves = cut(path, "a")
    assert halves.cut == ("a",)
    for half, wanted in ((halves.head, ["w"]), (halves.tail, ["w", "v"])):
        assert [one.name for one in model_of(half).graph.initializer] == wanted
    assert_recomposes(path, halves)


def test_what_the_file_says_about_itself_stays(tmp_path: Path) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    model = onnx.load(str(path))
    helper.set_model_props(model, {"author": "someone", "upwell.split.half": "of another split"})
    model.graph.value_info.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, ["rows", 3]))
    model.graph.doc_string = "why"
    path.write_bytes(model.SerializeToString())
    halves = cut(path, "b", "first")
    for half, side in ((halves.head, "head"), (halves.tail, "tail")):
        made = model_of(half)
        assert {one.key: one.value for one in made.metadata_props} == {
            "author": "someone",
            "upwell.split.half": side,
            "upwell.split.whole": model_digest(path).removeprefix("sha256:"),
            "upwell.split.cut": json.dumps(["b"]),
            "upwell.split.outputs": json.dumps(["first", "last"]),
        }
        assert made.ir_version == model.ir_version
        assert made.opset_import == model.opset_import
        assert made.producer_name == "someone"
        assert (made.graph.name, made.graph.doc_string) == ("chain", "why")
    assert names(model_of(halves.tail).graph.value_info) == ["d"]
    assert not model_of(halves.head).graph.value_info


def test_the_same_cut_gives_the_same_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    assert cut(path, "b").digest == cut(path, "b").digest != cut(path, "a").digest


QUANTIZED = """
quantized (float[1, 4] x) => (float[1, 4] y, float[1, 4] z) {
    scale = Constant <value = float {0.05}> ()
    zero = Constant <value = uint8 {128}> ()
    q = QuantizeLinear (x, scale, zero)
    r = DequantizeLinear (q, scale, zero)
    s = Relu (r)
    t = QuantizeLinear (s, scale, zero)
    u = DequantizeLinear (t, scale, zero)
    y = Sqrt (u)
    z = Neg (u)
}
"""


def test_quantized_tensors_travel_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, QUANTIZED)
    graph = contract(read_graph(path))
    halves = split_onnx(path, graph, making(graph, "t"))
    assert halves.cut == ("t",)
    assert halves.tail.inputs[0].datatype == "UINT8"
    tail = model_of(halves.tail)
    assert [node.op_type for node in tail.graph.node] == ["Constant", "Constant", "DequantizeLinear", "Sqrt", "Neg"]
    assert_recomposes(path, halves)


def test_both_halves_dequantize_what_both_read(tmp_path: Path) -> None:
    path = written(tmp_path, QUANTIZED)
    graph = contract(read_graph(path))
    halves = split_onnx(path, graph, making(graph, "y"))
    assert halves.cut == ("t",)
    assert names(model_of(halves.head).graph.output) == ["t", "y"]
    for half in (halves.head, halves.tail):
        assert "u" in [node.output[0] for node in model_of(half).graph.node]
    assert_recomposes(path, halves)


def test_an_output_that_no_operator_makes_is_the_heads(tmp_path: Path) -> None:
    text = CHAIN.replace("first, ", "first, float[rows, 3] extra, float[3] w, ")
    path = written(tmp_path, text, **WEIGHTS)
    halves = cut(path, "b")
    assert names(model_of(halves.head).graph.input) == ["x", "extra"]
    assert names(model_of(halves.head).graph.output) == ["a", "b", "extra", "w"]
    assert names(model_of(halves.tail).graph.input) == ["a", "b", "extra"]
    assert_recomposes(path, halves)


def test_operators_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    model = onnx.load(str(path))
    turned = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(turned)
    path.write_bytes(model.SerializeToString())
    halves = cut(path, "b")
    assert [node.output[0] for node in model_of(halves.tail).graph.node] == ["c", "d", "last", "first"]


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        ([], "the head would be empty"),
        ([0, 1, 2, 3, 4, 5], "the tail would be empty"),
        ([1], "reads tensors of the other side"),
        ([0, 1, 2, 3, 4], None),
    ],
)
def test_what_is_no_cut_is_refused(tmp_path: Path, edge: list[int], message: str | None) -> None:
    path = written(tmp_path, CHAIN, **WEIGHTS)
    graph = read_graph(path)
    if message is None:
        assert_recomposes(path, split_onnx(path, graph, frozenset(edge)))
        return
    with pytest.raises(ConfigError, match=message):
        split_onnx(path, graph, frozenset(edge))


def test_a_half_that_would_give_nothing_is_refused(tmp_path: Path) -> None:
    dead = "dead (float[2] x) => (float[2] y) {\n y = Abs (x)\n lost = Neg (x)\n}"
    path = written(tmp_path, dead)
    graph = read_graph(path)
    with pytest.raises(ConfigError, match="the tail would have no outputs"):
        split_onnx(path, graph, frozenset({0}))
    with pytest.raises(ConfigError, match="the tail takes nothing from the head"):
        split_onnx(path, graph, frozenset({1}))


def test_branches_that_share_no_tensor_are_not_cut_apart(tmp_path: Path) -> None:
    path = written(
        tmp_path, "two (float[2] x, float[2] y) => (float[2] a, float[2] b) {\n a = Abs (x)\n b = Neg (y)\n}"
    )
    with pytest.raises(ConfigError, match="the tail takes nothing from the head"):
        cut(path, "b")


def test_a_tensor_of_unknown_size_is_not_cut(tmp_path: Path) -> None:
    text = "gaps (float[4] x) => (int64[1, n] y) {\n m = Relu (x)\n n1 = NonZero (m)\n y = Neg (n1)\n}"
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match="the size of 'n1' is unknown"):
        cut(path, "n1")


def test_a_graph_of_another_file_is_refused(tmp_path: Path) -> None:
    graph = read_graph(written(tmp_path, CHAIN, **WEIGHTS))
    other = written(tmp_path, QUANTIZED)
    with pytest.raises(ConfigError, match="the graph belongs to another model"):
        split_onnx(other, graph, frozenset({0}))
