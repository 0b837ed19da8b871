"""Coverage of ONNX models, as far as the plain CPU package can show it; the rest is in `tests/accelerators`."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.unit.models_for_tests import linear, save, tensor
from upwell.edge.runtimes.onnx.node_assignment import AssignedNode, GraphPart, covers, records_assignment
from upwell.edge.runtimes.onnx.runtime import survey
from upwell.edge.runtimes.placement import AcceleratorNotUsable, Coverage, NodeCover
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.graph import read_graph
from upwell.tools.demo.digit_data import ASSETS

with_azure = pytest.mark.skipif(
    "AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="this onnxruntime has no Azure"
)
BOTH = pytest.mark.parametrize(
    "by_profile",
    [True, pytest.param(False, marks=pytest.mark.skipif(not records_assignment(), reason="needs 1.24"))],
)


def cover(path: Path, provider: str = "azure", *, by_profile: bool = True) -> Coverage:
    return survey(path, RuntimeOptions(), AcceleratorOptions(provider=provider), by_profile=by_profile)


# --- What ONNX Runtime tells, made into partitions


def part(provider: str, *names: str) -> GraphPart:
    return GraphPart(provider, tuple(AssignedNode(name, "", provider) for name in names))


def chain(folder: Path, names: Sequence[str]) -> Path:
    """Nodes one after the other."""
    tensors = ["x", *(f"h{index}" for index in range(1, len(names))), "y"]
    nodes = [
        helper.make_node("Tanh", [before], [after], name=name)
        for name, (before, after) in zip(names, itertools.pairwise(tensors), strict=True)
    ]
    return save(folder / "chain.onnx", nodes, [tensor("x", [3])], [tensor("y", [3])])


def partitions(folder: Path, names: str, *parts: GraphPart) -> list[int | None]:
    found = covers(read_graph(chain(folder, names)), parts, "npu")
    return [node.partition for node in found]


def test_the_parts_of_a_provider_that_compiles_are_its_partitions(tmp_path: Path) -> None:
    assert partitions(tmp_path, "abcd", part("npu", "c", "d"), part("npu", "a", "b")) == [0, 0, 1, 1]


def test_the_nodes_of_one_that_does_not_are_in_connected_groups(tmp_path: Path) -> None:
    parts = [part("npu", name) for name in "abde"]
    assert partitions(tmp_path, "abcde", *parts, part("cpu", "c")) == [0, 0, None, 1, 1]


def test_nodes_that_went_into_one_of_the_accelerators_are_there(tmp_path: Path) -> None:
    assert partitions(tmp_path, "abcd", part("npu", "fused_0"), part("cpu", "d")) == [0, 0, 0, None]
    assert partitions(tmp_path, "abcd", part("npu", "a", "b_token_7"), part("cpu", "d")) == [0, 0, None, None]
    assert partitions(tmp_path, "abcde", part("npu", "a", "c", "made"), part("cpu", "e")) == [0, 0, 0, 0, None]


def test_nodes_that_are_nowhere_are_where_their_neighbours_are(tmp_path: Path) -> None:
    assert partitions(tmp_path, "abc", part("npu", "a"), part("npu", "c")) == [0, 0, 0]
    assert partitions(tmp_path, "abc", part("cpu", "a"), part("cpu", "c")) == [None, None, None]
    assert partitions(tmp_path, "abc", part("npu", "a"), part("cpu", "c")) == [0, None, None]


def test_nodes_that_were_made_for_the_cpu_are_left_there(tmp_path: Path) -> None:
    graph = read_graph(chain(tmp_path, "ab"))
    found = covers(graph, [part("npu", "a", "b"), GraphPart("cpu", (AssignedNode("t_1", "Transpose", "cpu"),))], "npu")
    assert [node.partition for node in found] == [0, 0, None]
    assert found[-1] == NodeCover("t_1", "Transpose", None, 0.0)


def test_groups_that_do_not_touch(tmp_path: Path) -> None:
    nodes = [helper.make_node("Tanh", [x], [y], name=x) for x, y in (("a", "c"), ("c", "d"), ("b", "e"))]
    inputs, outputs = ([tensor(name, ["n", 3]) for name in names] for names in ("ab", "de"))
    graph = read_graph(save(tmp_path / "m.onnx", nodes, inputs, outputs))
    assert [node.partition for node in covers(graph, [part("npu", name) for name in "acb"], "npu")] == [0, 0, 1]


# --- The whole way


@with_azure
@BOTH
def test_a_provider_that_takes_nothing(tmp_path: Path, by_profile: bool) -> None:
    found = cover(linear(tmp_path, rows=2), by_profile=by_profile)
    assert found.source == ("profile" if by_profile else "graph assignment")
    assert (found.accelerator, found.partitions, found.node_share, found.work_share) == ("azure", 0, 0, 0)
    # ONNX Runtime makes one node of MatMul and Add before a provider is asked.
    assert [(node.operator, node.work) for node in found.left_on_cpu] == [("Gemm", 2 * 8 * 3)]


@with_azure
@BOTH
@pytest.mark.parametrize("name", ["digits", "pages"])
def test_every_node_of_the_demos_models_is_found(name: str, by_profile: bool) -> None:
    path = ASSETS / "edge" / name / "model.onnx"
    found = cover(path, by_profile=by_profile)
    assert [node.name for node in found.left_on_cpu] == [node.name for node in found.nodes]
    assert {node.name for node in found.nodes} >= {node.name for node in read_graph(path).nodes}
    assert found.work_share == 0


@with_azure
def test_work_by_shapes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {
        "conv": random.random((6, 2, 3, 3), np.float32),  # 4 channels in 2 groups
        "wide": random.random((6, 5, 2, 2), np.float32),
        "dense": random.random((5, 7), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["a"], group=2, pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("ConvTranspose", ["b", "wide"], ["c"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "dense"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, [tensor("x", [1, 4, 8, 8])], [tensor("y", [1, 7])], weights)
    work = {node.operator: node.work for node in cover(path).nodes}
    assert work["Conv"] == 6 * 8 * 8 * 2 * 3 * 3
    assert work["Sigmoid"] == 6 * 8 * 8
    assert work["ConvTranspose"] == 6 * 8 * 8 * 5 * 2 * 2
    assert work["MatMul"] == 5 * 7


@with_azure
def test_without_onnx_there_is_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["h"]), helper.make_node("Abs", ["h"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, [tensor("x", [3])], [tensor("y", [3])])
    monkeypatch.setitem(sys.modules, "onnx", None)
    found = cover(path)
    assert math.isnan(found.work_share)
    assert found.node_share == 0


def test_the_cpu_must_load_the_model(tmp_path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="vendor")
    path = save(tmp_path / "m.onnx", [node], [tensor("x", [2])], [tensor("y", [2])], domains=["vendor"])
    with pytest.raises(ConfigError, match=r"m\.onnx: ONNX Runtime cannot load the model: .*Frobnicate"):
        cover(path)
    with pytest.raises(ConfigError, match="no such file; expected a model"):
        cover(tmp_path / "gone.onnx")


def test_a_provider_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AcceleratorNotUsable, match="has no MIGraphXExecutionProvider"):
        cover(linear(tmp_path), "migraphx")


def test_the_cpu_is_no_accelerator(tmp_path: Path) -> None:
    for name in ("cpu", "CPUExecutionProvider"):
        with pytest.raises(AcceleratorNotUsable, match="CPU provider is not an accelerator"):
            cover(linear(tmp_path), name)
