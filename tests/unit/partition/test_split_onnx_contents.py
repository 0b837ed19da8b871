"""What is easily lost when an ONNX model is cut: captures, functions, sparse weights, weights in other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.models.legal_cuts import can_cross
from tests.models.onnx_recomposing import BASIC, random_feed, recomposed, run, session_of
from tests.unit.partition.splitting import split_onnx
from upwell.shared.errors import ConfigError
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.onnx_halves import MODEL_FILE, WEIGHTS_FILE, files_of

CAPTURES = """
<ir_version: 8, opset_import: ["" : 17]>
captures (float[rows, 2] x) => (float[rows, 2] y)
<float[2] w = {1.0, 2.0}, float[2] v = {3.0, -1.0}, bool yes = {1}, int64 times = {3}, float zero = {0}>
{
    a = Mul (x, w)
    b = Neg (a)
    sum = ReduceSum <keepdims = 0> (x)
    positive = Greater (sum, zero)
    c = If (positive) <
        then_branch = then () => (float[rows, 2] r) { inner = Add (a, w)  r = If (yes) <
            then_branch = deep () => (float[rows, 2] s) { s = Mul (inner, b) },
            else_branch = flat () => (float[rows, 2] s) { s = Identity (inner) }> },
        else_branch = else () => (float[rows, 2] r) { r = Sub (b, v) }>
    y = Loop (times, yes, c) <body = body (int64 i, bool go, float[rows, 2] state) => (bool more, float[rows, 2] next) {
        more = Identity (go)
        grown = Add (state, a)
        next = Mul (grown, v) }>
}
"""


def cuts_of(path: Path) -> list[Halves]:
    """Every cut between two operators that is legal, nothing fused."""
    graph = read_graph(path)
    own = [index for index, node in enumerate(graph.nodes) if not node.is_free]
    edges = [frozenset(own[:count]) for count in range(1, len(own))]
    return [split_onnx(path, graph, edge) for edge in edges if can_cross(graph, edge)]


def assert_all_recompose(path: Path, rows: int = 1) -> list[Halves]:
    session = session_of(path, BASIC)
    feed = random_feed(session, rows)
    expected = run(session, feed)
    found = cuts_of(path)
    for halves in found:
        for half in (halves.head, halves.tail):
            onnx.checker.check_model(half.files[MODEL_FILE], full_check=True)
        got = recomposed(halves, feed, BASIC)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)
    return found


def weights(half: ModelHalf) -> set[str]:
    return {one.name for one in onnx.ModelProto.FromString(half.files[MODEL_FILE]).graph.initializer}


@pytest.mark.parametrize("rows", [1, 3])
def test_what_bodies_capture_crosses_with_them(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(CAPTURES).SerializeToString())
    found = assert_all_recompose(path, rows)
    assert ("a", "b", "positive") in [tuple(sorted(halves.cut)) for halves in found]
    (last,) = [halves for halves in found if set(halves.cut) == {"a", "c"}]
    assert weights(last.tail) == {"v", "yes", "times"}
    assert weights(last.head) == {"w", "v", "yes", "zero"}


FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
functions (float[2] x) => (float[2] y) { a = own.outer (x)  b = Neg (a)  y = own.other (b) }
<domain: "own", opset_import: ["" : 17]> inner (x) => (y) { y = Abs (x) }
<domain: "own", opset_import: ["" : 17, "own" : 1]> outer (x) => (y) { r = own.inner (x)  y = Sqrt (r) }
<domain: "own", opset_import: ["" : 17]> other (x) => (y) { y = Exp (x) }
"""


def test_each_half_has_the_functions_that_it_calls(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(FUNCTIONS).SerializeToString())
    for halves in assert_all_recompose(path):
        head, tail = (onnx.ModelProto.FromString(half.files[MODEL_FILE]) for half in (halves.head, halves.tail))
        assert [one.name for one in head.functions] == ["inner", "outer"]
        assert [one.name for one in tail.functions] == ["other"]


def test_sparse_weights_go_where_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = "sparse (float[1, 3] x) => (float[1, 3] y) {\n a = MatMul (x, w)\n b = Neg (a)\n y = MatMul (b, v)\n}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    for name, at in (("w", [1, 5]), ("v", [0, 7])):
        values = numpy_helper.from_array(np.array([2.0, -1.5], np.float32), name)
        made = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(at)), [3, 3])
        model.graph.sparse_initializer.append(made)
    path.write_bytes(model.SerializeToString())
    for halves in assert_all_recompose(path):
        for half, name in ((halves.head, "w"), (halves.tail, "v")):
            graph = onnx.ModelProto.FromString(half.files[MODEL_FILE]).graph
            assert [one.values.name for one in graph.sparse_initializer] == [name]


def test_weights_that_old_files_list_as_inputs_stay_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = (
        "old (float[2] x, float[2] w) => (float[2] y)\n<float[2] w = {1.0, -1.0}>\n{ a = Mul (x, w)  y = Add (a, w) }"
    )
    model = parser.parse_model(f'<ir_version: 3, opset_import: ["" : 9]>\n{text}')
    path.write_bytes(model.SerializeToString())
    (halves,) = assert_all_recompose(path)
    for half in (halves.head, halves.tail):
        assert len(half.inputs) == 1
        made = onnx.ModelProto.FromString(half.files[MODEL_FILE])
        assert [one.name for one in made.graph.input] == [half.inputs[0].name, "w"]


def elsewhere(folder: Path, change: Callable[[onnx.TensorProto], Any] = lambda _: None) -> Path:
    """`y = (x * w + v) * w`, its weights, and one in the body of an If, in `weights.bin` beside it."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    far (float[4] x) => (float[4] y) <bool yes = {1}> {
        a = Mul (x, w)
    b = If (yes) <
            then_branch = then () => (float[4] r) { r = Add (a, v) },
            else_branch = else () => (float[4] r) { c = Constant <value = float[4] {0}> ()  r = Sub (a, c) }>
        y = Mul (b, w)
    }
    """
    model = parser.parse_model(text)
    data = bytearray(64)
    branch = model.graph.node[1].attribute[1].g
    for name, tensor in (("w", None), ("v", None), ("", branch.node[0].attribute[0].t)):
        values = np.arange(len(data), len(data) + 4, dtype=np.float32)
        made = numpy_helper.from_array(values, name)
        made.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", len(data)), ("length", len(made.raw_data))):
            made.external_data.add(key=key, value=str(value))
        data += made.raw_data
        made.ClearField("raw_data")
        change(made)
        if tensor is None:
            model.graph.initializer.append(made)
        else:
            tensor.CopyFrom(made)
    (folder / "weights.bin").write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_are_read_from_other_files(tmp_path: Path) -> None:
    path = elsewhere(tmp_path)
    found = assert_all_recompose(path)
    assert found
    for halves in found:
        assert [list(half.files) for half in (halves.head, halves.tail)] == [[MODEL_FILE], [MODEL_FILE]]
        assert b"weights.bin" not in halves.head.files[MODEL_FILE] + halves.tail.files[MODEL_FILE]


def set_entry(key: str, value: str) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("location", "../weights.bin", r"refused; expected a relative path without '\.\.'"),
        ("location", "/etc/hostname", "refused"),
        ("location", "other.bin", "missing"),
        ("length", "4096", "'w': weights.bin has 112 bytes; expected 4096 at offset 64"),
        ("length", "-1", "expected -1 at offset"),
        ("offset", "-4", "expected 16 at offset -4"),
        ("offset", "first", "its offset or length in weights.bin is not a number"),
    ],
)
def test_weights_that_are_not_there_are_refused(tmp_path: Path, key: str, value: str, message: str) -> None:
    graph = read_graph(elsewhere(tmp_path))
    path = elsewhere(tmp_path, set_entry(key, value))
    with pytest.raises(ConfigError, match=message):
        split_onnx(path, graph, frozenset({0}))


def test_large_weights_lie_beside_a_half(tmp_path: Path) -> None:
    """More than 1 GiB, but for this test."""
    large = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    text = "large (float[1, 64] x) => (float[1, 64] y) <float[1] one = {1}> { a = MatMul (x, w)  y = Add (a, one) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    model.graph.initializer.extend([numpy_helper.from_array(large, "w"), numpy_helper.from_array(large, "again")])
    model.graph.node[1].input[0] = "b"
    model.graph.node.insert(1, helper.make_node("MatMul", ["a", "again"], ["b"]))
    inline = files_of(onnx.ModelProto.FromString(model.SerializeToString()), most_inline_bytes=2 * large.nbytes)
    files = files_of(model, most_inline_bytes=2 * large.nbytes - 1)
    assert list(inline) == [MODEL_FILE]
    assert list(files) == [MODEL_FILE, WEIGHTS_FILE]
    assert len(files[WEIGHTS_FILE]) == 2 * large.nbytes
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    onnx.checker.check_model(str(tmp_path / MODEL_FILE), full_check=True)
    feed = {"x": np.ones((1, 64), np.float32)}
    sessions = (session_of(tmp_path / MODEL_FILE), session_of(inline[MODEL_FILE]))
    far, near = (run(session, feed)["y"] for session in sessions)
    np.testing.assert_array_equal(far, near)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = elsewhere(tmp_path)
    graph = read_graph(path)
    path.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="not an ONNX file"):
        split_onnx(path, graph, frozenset({0}))
    with pytest.raises(ConfigError, match="cannot read the model"):
        split_onnx(tmp_path / "missing.onnx", graph, frozenset({0}))
