"""Halves of TFLite models: what is in them, and that they give what the whole gives in both packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from tests.models.make_mobilenet_tflite import PATH as MOBILENET
from tests.models.tflite_recomposing import CutModel, file_of, recomposed, run
from tests.unit.partition import tflite_parts_for_tests as parts
from tests.unit.partition.splitting import split_tflite
from tests.unit.tflite_for_tests import TFLITE_PACKAGES, T, mul, save
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.tflite_halves import packed
from upwell.shared.tensors import Array


def halves_of(path: Path, nodes: int) -> Halves:
    return split_tflite(path, contract(read_graph(path)), frozenset(range(nodes)))


def names(half: ModelHalf) -> tuple[list[str], list[str]]:
    return [one.name for one in half.inputs], [one.name for one in half.outputs]


def row(*values: float) -> Array:
    return np.array([values], np.float32)


def operators(half: ModelHalf) -> list[str]:
    model = parts.parsed(file_of(half))
    codes = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    return [codes[model.operatorCodes[one.opcodeIndex].builtinCode] for one in model.subgraphs[0].operators]


X = row(0.5, -1.5, 0.25, -0.125)


def test_each_operator_is_in_one_half_and_names_are_those_that_callers_know(tmp_path: Path) -> None:
    halves = halves_of(parts.chain(tmp_path), 2)
    assert halves.cut == ("bent",)
    assert (operators(halves.head), operators(halves.tail)) == (["MUL", "RELU"], ["ADD", "TANH"])
    assert names(halves.head) == (["given"], ["bent"])
    assert names(halves.tail) == (["bent"], ["answer"])
    assert [(one.datatype, one.shape) for one in halves.tail.inputs] == [("FP32", (1, 4))]


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_halves_give_what_the_whole_gives(tmp_path: Path, package: str) -> None:
    path = parts.chain(tmp_path)
    whole = run(path.read_bytes(), {"given": X}, package)["answer"]
    assert len(np.unique(whole)) == 4
    for nodes in (1, 2, 3):
        np.testing.assert_array_equal(recomposed(halves_of(path, nodes), {"given": X}, package)["answer"], whole)


def test_a_half_holds_its_own_weights_alone(tmp_path: Path) -> None:
    halves = halves_of(parts.chain(tmp_path), 2)
    for half, kept, gone in ((halves.head, b"k", b"b"), (halves.tail, b"b", b"k")):
        tensors = {one.name for one in parts.parsed(file_of(half)).subgraphs[0].tensors}
        assert kept in tensors
        assert gone not in tensors


def test_without_a_signature_tensors_keep_their_names(tmp_path: Path) -> None:
    halves = halves_of(parts.chain(tmp_path, signed=False), 2)
    assert (names(halves.head), names(halves.tail)) == ((["x"], ["bent"]), (["bent"], ["y"]))


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_the_tail_takes_as_many_rows_as_the_whole(tmp_path: Path, package: str) -> None:
    path = parts.chain(tmp_path, rows=-1)
    halves = halves_of(path, 2)
    assert halves.tail.inputs[0].shape == ("batch", 4)
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    whole = run(path.read_bytes(), {"given": rows}, package)["answer"]
    assert whole.shape == (3, 4)
    np.testing.assert_array_equal(recomposed(halves, {"given": rows}, package)["answer"], whole)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_outputs_on_both_sides_an_output_at_the_cut_and_an_input_of_the_tail(tmp_path: Path, package: str) -> None:
    path = parts.early_exit(tmp_path)
    halves = halves_of(path, 2)
    assert halves.cut == ("middle",)  # by the name that callers know
    assert names(halves.head) == (["x"], ["middle", "early"])
    assert names(halves.tail) == (["middle", "other"], ["late"])
    feed = {"x": X, "other": row(1, 2, 3, 4)}
    whole = run(path.read_bytes(), feed, package)
    made = recomposed(halves, feed, package)
    assert set(made) == set(whole) == {"early", "late", "middle"}
    for name, array in whole.items():
        np.testing.assert_array_equal(made[name], array)


def test_a_cut_tensor_that_is_called_like_an_input_gets_another_name(tmp_path: Path) -> None:
    tensors = [T(name, (1, 4)) for name in ("a", "b", "inner", "y")]
    operators = [mul(0, 0, 2), mul(2, 1, 3)]
    path = save(tmp_path / "m.tflite", tensors, operators, [0, 1], [3], ({"x": 0, "inner": 1}, {"y": 3}))
    halves = halves_of(path, 1)
    assert names(halves.tail) == (["inner#", "inner"], ["y"])
    feed = {"x": X, "inner": row(1, 2, 3, 4)}
    np.testing.assert_array_equal(recomposed(halves, feed)["y"], run(path.read_bytes(), feed)["y"])


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
@pytest.mark.parametrize("flag", [True, False])
def test_bodies_of_control_flow_come_along_and_others_stay_behind(tmp_path: Path, package: str, flag: bool) -> None:
    path = parts.with_bodies(tmp_path)
    halves = halves_of(path, 1)
    assert names(halves.tail) == (["y", "flag"], ["z"])
    graphs = parts.parsed(file_of(halves.tail)).subgraphs
    assert [one.name for one in graphs] == [b"main", b"then", b"else"]
    assert len(parts.parsed(file_of(halves.head)).subgraphs) == 1
    feed = {"x": X, "flag": np.array([flag])}
    made = recomposed(halves, feed, package)["z"]
    np.testing.assert_allclose(made, 2 * np.tanh(X), rtol=1e-5)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_a_variable_stays_in_one_half(tmp_path: Path, package: str) -> None:
    path = parts.with_variable(tmp_path)
    graph = contract(read_graph(path))
    for nodes in range(1, len(graph.nodes)):
        halves = split_tflite(path, graph, frozenset(range(nodes)))
        assert sum("VAR_HANDLE" in operators(half) for half in (halves.head, halves.tail)) == 1
        np.testing.assert_allclose(recomposed(halves, {"x": X}, package)["w"], np.tanh(2 * X), rtol=1e-5)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_weights_behind_the_flatbuffer_are_found(tmp_path: Path, package: str) -> None:
    path = parts.chain(tmp_path)
    halves = halves_of(parts.moved_behind(path), 2)
    whole = run(path.read_bytes(), {"given": X}, package)["answer"]
    np.testing.assert_array_equal(recomposed(halves, {"given": X}, package)["answer"], whole)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_a_large_half_has_its_weights_behind_the_flatbuffer(package: str) -> None:
    cut = CutModel(MOBILENET)
    halves = cut.halves(frozenset(range(10)))
    inline = file_of(halves.tail)
    behind = packed(parts.parsed(inline), most_inline_bytes=100_000)
    buffers = [one for one in parts.parsed(behind).buffers if one.offset]
    assert len(buffers) > 10
    assert all(one.offset % 16 == 0 and one.data is None for one in buffers)
    random = np.random.default_rng(0)
    feed: dict[str, Array] = {
        one.name: random.integers(-128, 128, [int(size) for size in one.shape or ()], np.int8)
        for one in halves.tail.inputs
    }
    np.testing.assert_array_equal(run(behind, feed, package)["scores"], run(inline, feed, package)["scores"])


def test_weights_are_aligned_as_the_schema_asks() -> None:
    data = file_of(CutModel(MOBILENET).halves(frozenset(range(10))).tail)
    for buffer in parts.parsed(data).buffers:
        if buffer.data is not None and len(buffer.data) >= 64:
            assert data.index(buffer.data.tobytes()) % 16 == 0


def test_a_quantized_tensor_crosses_with_its_scale_and_zero_point() -> None:
    halves = CutModel(MOBILENET).halves(frozenset(range(10)))
    assert {one.datatype for one in halves.tail.inputs} == {"INT8"}

    def parameters(half: ModelHalf, name: str) -> Any:
        (tensor,) = (one for one in parts.parsed(file_of(half)).subgraphs[0].tensors if one.name == name.encode())
        return float(tensor.quantization.scale[0]), int(tensor.quantization.zeroPoint[0])

    assert len(halves.cut) == 2
    for name in halves.cut:
        assert parameters(halves.head, name) == parameters(halves.tail, name)
        assert 0 < parameters(halves.head, name)[0] < 1
