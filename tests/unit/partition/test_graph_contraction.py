"""What of real models stays together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.unit.partition.onnx_parts_for_tests import (
    QUANTIZATION,
    dequantize,
    model,
    op,
    quantize,
    value,
    weights,
)
from upwell.shared.partition.graph_contraction import _Groups, contract
from upwell.shared.partition.model_graph import Graph, Node, Tensor
from upwell.shared.partition.read_graph import read_graph

X = value("x", ("rows", 16))
SHARED = {
    "w": weights(16, 16), "b": weights(16), "g": weights(16), "two": np.float32(2), "one": np.float32(1),
    "half": np.float32(0.5), "root": np.float32(1.4142), "small": np.float32(1e-5), "axis": np.array([-1]),
}  # fmt: skip


def groups(folder: Path, nodes: Sequence[Any], outputs: Sequence[str] = ("y",), **more: Any) -> list[list[str]]:
    """The operators of each node of the contracted graph, by the names of what they make first."""
    path = folder / "model.onnx"
    model(path, list(nodes), [X], [value(one) for one in outputs], {**SHARED, **more})
    graph = read_graph(path)
    return [[graph.nodes[member].outputs[0] for member in node.members] for node in contract(graph).nodes]


def layer_norm(x: str, y: str) -> list[Any]:
    return [
        op("ReduceMean", [x], [f"{y}.mean"], axes=[-1]),
        op("Sub", [x, f"{y}.mean"], [f"{y}.d"]),
        op("Pow", [f"{y}.d", "two"], [f"{y}.square"]),
        op("ReduceMean", [f"{y}.square"], [f"{y}.variance"], axes=[-1]),
        op("Add", [f"{y}.variance", "small"], [f"{y}.safe"]),
        op("Sqrt", [f"{y}.safe"], [f"{y}.std"]),
        op("Div", [f"{y}.d", f"{y}.std"], [f"{y}.normal"]),
        op("Mul", [f"{y}.normal", "g"], [f"{y}.scaled"]),
        op("Add", [f"{y}.scaled", "b"], [y]),
    ]


def linear(x: str, y: str) -> list[Any]:
    return [op("MatMul", [x, "w"], [f"{y}.product"]), op("Add", [f"{y}.product", "b"], [y])]


def gelu(x: str, y: str) -> list[Any]:
    return [
        op("Div", [x, "root"], [f"{y}.scaled"]),
        op("Erf", [f"{y}.scaled"], [f"{y}.erf"]),
        op("Add", [f"{y}.erf", "one"], [f"{y}.more"]),
        op("Mul", [x, f"{y}.more"], [f"{y}.product"]),
        op("Mul", [f"{y}.product", "half"], [y]),
    ]


def test_a_block_of_a_transformer(tmp_path: Path) -> None:
    """Normalization before two layers with GELU between them, and a way around all of it."""
    nodes = [
        *linear("x", "h"), *layer_norm("h", "n"), *linear("n", "up"), *gelu("up", "active"), *linear("active", "down"),
        op("Add", ["down", "h"], ["sum"]), *linear("sum", "y"),
    ]  # fmt: skip
    found = [(len(one), one[0], one[-1]) for one in groups(tmp_path, nodes)]
    assert found == [
        (2, "h.product", "h"), (9, "n.mean", "n"), (7, "up.product", "active"), (3, "down.product", "sum"),
        (2, "y.product", "y"),
    ]  # fmt: skip


def test_silu_and_a_softmax_that_is_written_out(tmp_path: Path) -> None:
    nodes = [
        *linear("x", "h"),
        op("Sigmoid", ["h"], ["gate"]),
        op("Mul", ["h", "gate"], ["s"]),
        op("Softmax", ["s"], ["kernel"]),
        op("ReduceMax", ["kernel"], ["most"], axes=[-1]),
        op("Sub", ["kernel", "most"], ["less"]),
        op("Exp", ["less"], ["e"]),
        op("ReduceSum", ["e", "axis"], ["total"]),
        op("Div", ["e", "total"], ["y"]),
    ]
    assert groups(tmp_path, nodes) == [
        ["h.product", "h", "gate", "s"], ["kernel"], ["most", "less", "e", "total", "y"],
    ]  # fmt: skip


def test_a_sum_joins_the_branch_that_needs_the_other(tmp_path: Path) -> None:
    """Of two branches that work, either may be the one to cut behind, so the sum joins none."""
    around = [*linear("x", "h"), *linear("h", "a"), op("Add", ["a", "h"], ["y"])]
    assert groups(tmp_path, around) == [["h.product", "h"], ["a.product", "a", "y"]]
    both = [*linear("x", "h"), *linear("h", "a"), *linear("h", "c"), op("Add", ["a", "c"], ["y"])]
    assert groups(tmp_path, both) == [["h.product", "h"], ["a.product", "a"], ["c.product", "c"], ["y"]]


def test_a_small_gate_stays_apart_from_what_it_gates(tmp_path: Path) -> None:
    """Squeeze and excitation: behind the gate, where `h` may be wanted anyway, less is new than behind the product."""
    nodes = [
        *linear("x", "h"),
        op("MatMul", ["h", "narrow"], ["n"]),
        op("Sigmoid", ["n"], ["gate"]),
        op("Mul", ["h", "gate"], ["g2"]),
        op("Softmax", ["g2"], ["y"]),
    ]
    assert groups(tmp_path, nodes, narrow=weights(16, 1)) == [["h.product", "h"], ["n", "gate"], ["g2"], ["y"]]


def test_what_grows_or_leaves_the_model_ends_a_group(tmp_path: Path) -> None:
    grows = [op("MatMul", ["x", "narrow"], ["n"]), op("Expand", ["n", "shape"], ["e"]), op("Relu", ["e"], ["y"])]
    found = groups(tmp_path, grows, narrow=weights(16, 1), shape=np.array([1, 16]))
    assert found == [["n"], ["e", "y"]]
    wide = [op("MatMul", ["x", "narrow"], ["n"]), op("Add", ["n", "b"], ["wide"]), op("Softmax", ["wide"], ["y"])]
    assert groups(tmp_path, wide, narrow=weights(16, 1)) == [["n"], ["wide"], ["y"]]
    double = [*linear("x", "h"), op("Cast", ["h"], ["c"], to=TensorProto.DOUBLE), op("Softmax", ["c"], ["y"])]
    assert groups(tmp_path, double) == [["h.product", "h"], ["c"], ["y"]]
    given = [*linear("x", "h"), op("Relu", ["h"], ["r"]), op("Softmax", ["r"], ["y"])]
    assert groups(tmp_path, given, outputs=("y", "h")) == [["h.product", "h"], ["r"], ["y"]]


def test_a_pooled_tensor_is_worth_cutting_behind(tmp_path: Path) -> None:
    nodes = [*linear("x", "h"), op("Relu", ["h"], ["r"]), op("ReduceMean", ["r"], ["m"], axes=[-1]),
             op("MatMul", ["m", "wide"], ["y"])]  # fmt: skip
    assert groups(tmp_path, nodes, wide=weights(1, 4)) == [["h.product", "h", "r"], ["m"], ["y"]]


@pytest.mark.parametrize("is_read_as_float", [False, True])
def test_quantizing_stays_with_what_is_read_quantized_alone(tmp_path: Path, is_read_as_float: bool) -> None:
    """Two scales of one result are read, and the result itself or not."""
    nodes = [
        op("MatMul", ["x", "w"], ["a"]),
        quantize("a", "q"),
        op("QuantizeLinear", ["a", "two", "zero"], ["q2"]),
        dequantize("q", "da"),
        op("DequantizeLinear", ["q2", "two", "zero"], ["da2"]),
        op("Add", ["da", "da2"], ["s"]),
        *([op("Softmax", ["a"], ["y2"])] if is_read_as_float else []),
        quantize("s", "qs"),
        dequantize("qs", "y"),
    ]
    found = groups(tmp_path, nodes, ("y", "y2") if is_read_as_float else ("y",), **QUANTIZATION)
    if is_read_as_float:
        assert found == [["a"], ["q"], ["q2"], ["s", "qs", "y"], ["y2"]]
    else:
        assert found == [["a", "q", "q2"], ["s", "qs", "y"]]


def test_no_operator_is_fused_over_quantized_values(tmp_path: Path) -> None:
    """There the runtime has kernels of their own, and a cut changes nothing."""
    nodes = [
        quantize("x", "qx"), dequantize("qx", "dx"), op("MatMul", ["dx", "w"], ["a"]), quantize("a", "q"),
        dequantize("q", "d"), op("Relu", ["d"], ["r"]), quantize("r", "qr"), dequantize("qr", "dr"),
        op("Softmax", ["dr"], ["y"]),
    ]  # fmt: skip
    assert groups(tmp_path, nodes, ("y",), **QUANTIZATION) == [["qx"], ["a", "q"], ["r", "qr"], ["y"]]


def test_ways_out_of_a_group_and_back_into_it_join_it(tmp_path: Path) -> None:
    """`found` has no known size; between it and its reader lies `m`."""
    nodes = [
        op("NonZero", ["x"], ["found"]),
        op("Softmax", ["x"], ["apart"]),
        op("Size", ["found"], ["count"]),
        op("CumSum", ["count2", "zeroth"], ["m"]),
        op("Expand", ["found", "m"], ["y"]),
        op("Reshape", ["count", "axis"], ["count2"]),
    ]
    found = groups(tmp_path, nodes, ("y", "apart"), zeroth=np.int64(0))
    assert found == [["found", "count", "count2", "m", "y"], ["apart"]]


def test_names_and_operators_of_a_group() -> None:
    names = ["x", *"abcdef"]
    nodes = [
        Node(f"node {new}", kind, (old,), (new,), (at,), work)
        for at, (old, new, kind, work) in enumerate(
            zip(names, names[1:], ["Conv", "Relu", "Mul", "Add", "Relu", "Neg"], [5.0, 1, 1, 1, 1, 1], strict=False)
        )
    ]
    graph = Graph("onnx", tuple(nodes), {name: Tensor(name, "FP32", (1,)) for name in names}, ("x",), ("f",))
    assert contract(graph).nodes == (Node("node a", "Conv+Relu+Mul+Add+…", ("x",), ("f",), tuple(range(6)), 10.0),)


def test_thousands_of_nodes_of_which_nothing_has_a_size_are_one() -> None:
    nodes = [Node(f"n{at}", "Relu", (f"t{at}",), (f"t{at + 1}",), (at,)) for at in range(3000)]
    tensors = {f"t{at}": Tensor(f"t{at}", "FP32", (1,) if at == 0 else None) for at in range(3001)}
    (one,) = contract(Graph("onnx", tuple(nodes), tensors, ("t0",), ("t3000",))).nodes
    assert one.members == tuple(range(3000))


@pytest.mark.parametrize("beside", ["nothing", "one early tensor", "an input of its own"])
def test_a_chain_of_elementwise_operators_takes_work_in_proportion_to_its_length(
    monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    """Work: what group a node is in, and each time that a tensor is looked up."""
    asked = 0
    root = _Groups._root

    def counted(groups: _Groups, index: int) -> int:
        nonlocal asked
        asked += 1
        return root(groups, index)

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__hash__()

    monkeypatch.setattr(_Groups, "_root", counted)
    count = 1000
    names = [Name(f"t{at}") for at in range(count + 1)]
    own = [Name(f"x{at}") for at in range(count)] if beside == "an input of its own" else []
    early = [names[1]] if beside == "one early tensor" else []
    nodes = [
        Node(f"n{at}", "Sum", (names[at], *own[at : at + 1], *(early if at > 1 else [])), (names[at + 1],), (at,))
        for at in range(count)
    ]
    tensors: dict[str, Tensor] = {name: Tensor(name, "FP32", (1,)) for name in (*names, *own)}
    graph = Graph("onnx", tuple(nodes), tensors, (names[0], *own), (names[count],))
    assert len(contract(graph).nodes) == 1
    assert asked < 200 * count


def test_what_lies_between_a_fold_of_the_rows_and_its_end_stays_together(tmp_path: Path) -> None:
    """Four times the rows of the request cross nowhere: a service could not tell them from rows of requests."""
    shapes = {"fold": np.array([-1, 4]), "unfold": np.array([-1, 16]), "small_w": weights(4, 4)}
    nodes = [
        op("MatMul", ["x", "w"], ["a"]),
        op("Reshape", ["a", "fold"], ["folded"]),
        op("MatMul", ["folded", "small_w"], ["first"]),
        op("MatMul", ["first", "small_w"], ["c"]),
        op("Reshape", ["c", "unfold"], ["d"]),
        op("MatMul", ["d", "w"], ["y"]),
    ]
    assert groups(tmp_path, nodes, **shapes) == [["a"], ["folded", "first", "c", "d"], ["y"]]
