"""Every cut of small random ONNX graphs makes two halves that together are the whole, to the bit."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

from tests.models.legal_cuts import can_cross
from tests.models.onnx_recomposing import BASIC, recomposed, run, session_of
from upwell.shared.errors import ConfigError
from upwell.shared.partition.model_graph import Graph
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves
from upwell.shared.partition.split.onnx_halves import OnnxModelFile
from upwell.shared.partition.split.split_model import split_model

PAIR = parser.parse_function(
    '<domain: "own", opset_import: ["" : 17]> pair (a, b) => (s, d) { s = Add (a, b)  d = Sub (a, b) }'
)
SHAPE = (3,)
WEIGHT = "weight"


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Up to six operators on INT32 [3]: some make two tensors, some have bodies that capture; weights are shared."""
    inputs = ["x0", "x1"][: draw(st.integers(1, 2))]
    made, nodes = [*inputs, WEIGHT], []
    for index in range(draw(st.integers(2, 6))):
        one, other = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        kind = draw(st.sampled_from(["Add", "Sub", "Mul", "pair", "If"]))
        outputs = [f"t{index}", f"u{index}"][: 2 if kind == "pair" else 1]
        nodes.append(_choice(one, other, outputs[0]) if kind == "If" else _plain(kind, [one, other], outputs))
        made += outputs
    last = nodes[-1].output[0]
    outputs = draw(st.permutations([last, *draw(st.sets(st.sampled_from([*made[len(inputs) + 1 :], *inputs])))]))
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.INT32, SHAPE) for name in dict.fromkeys(names)]
        for names in (inputs, outputs)
    ]
    weights = [
        numpy_helper.from_array(np.array([3, -2, 5], np.int32), WEIGHT),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    graph = helper.make_graph(nodes, "random", ends[0], ends[1], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, functions=[PAIR], opset_imports=opsets, ir_version=8)
    )


def _plain(kind: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, domain="own" if kind == "pair" else "")


def _choice(one: str, other: str, output: str) -> onnx.NodeProto:
    """Reads its operands by capture alone."""
    branches = []
    for operator in ("Add", "Mul"):
        result = helper.make_tensor_value_info(f"{output}_{operator}", TensorProto.INT32, SHAPE)
        node = helper.make_node(operator, [one, other], [result.name])
        branches.append(helper.make_graph([node], operator, [], [result]))
    return helper.make_node("If", ["yes"], [output], then_branch=branches[0], else_branch=branches[1])


def edges(graph: Graph) -> list[frozenset[int]]:
    """Every edge side that may be one; neither half is empty."""
    size = len(graph.nodes)
    subsets = (frozenset(one) for count in range(1, size) for one in itertools.combinations(range(size), count))
    return [edge for edge in subsets if can_cross(graph, edge)]


def gives_something(graph: Graph, edge: frozenset[int]) -> bool:
    """Whether the head sends something, and the tail has an output of the model."""
    made = {name for index in edge for name in graph.nodes[index].outputs}
    read = {name for index, node in enumerate(graph.nodes) if index not in edge for name in node.inputs}
    return bool(made & read) and not {*graph.outputs} <= {*made, *graph.inputs}


@settings(max_examples=25, deadline=None)
@given(models())
def test_every_downset_recomposes(tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto) -> None:
    path = tmp_path_factory.mktemp("random") / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph, whole = read_graph(path), OnnxModelFile.read(path)
    assume(not any(node.is_free for node in graph.nodes))
    session = session_of(path, BASIC)
    feed = {one.name: np.array([index + 2, -1, 7], np.int32) for index, one in enumerate(session.get_inputs())}
    expected = run(session, feed)
    for edge in edges(graph):
        if not gives_something(graph, edge):
            with pytest.raises(ConfigError, match=r"would have no outputs|takes nothing from the head"):
                split_model(whole, graph, edge)
            continue
        halves = split_model(whole, graph, edge)
        assert_parts(graph, edge, halves)
        got = recomposed(halves, feed, BASIC)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)


def assert_parts(graph: Graph, edge: frozenset[int], halves: Halves) -> None:
    """Each operator is in one half, each output given by one, and nothing crosses that is not read beyond."""
    models = [onnx.ModelProto.FromString(half.files["model.onnx"]) for half in (halves.head, halves.tail)]
    counts = [len(model.graph.node) for model in models]
    assert counts == [len(edge), len(graph.nodes) - len(edge)]
    head, tail = ([one.name for one in half.outputs] for half in (halves.head, halves.tail))
    assert sorted([*(name for name in head if name in graph.outputs), *tail]) == sorted(graph.outputs)
    assert tail == [name for name in graph.outputs if name in tail]
    read = {name for node in models[1].graph.node for name in _read(node)}
    assert [one.name for one in halves.tail.inputs][: len(halves.cut)] == list(halves.cut)
    assert {one.name for one in halves.tail.inputs} == read & {*halves.cut, *graph.inputs}
    assert set(halves.cut) <= read


def _read(node: onnx.NodeProto) -> list[str]:
    return [*node.input, *(name for one in node.attribute for inner in one.g.node for name in inner.input)]
