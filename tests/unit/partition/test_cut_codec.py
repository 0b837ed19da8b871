"""Float tensors that cross a cut as FP16 or UINT8: what is sent, what is lost, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from tests.models.onnx_recomposing import BASIC, random_feed, recomposed, run, session_of
from tests.unit.partition.splitting import split_onnx
from upwell.shared.errors import ConfigError
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.onnx_halves import MODEL_FILE, WEIGHTS_FILE, CutCodec, Ranges, files_of, with_codec

TEXT = """
both (float[rows, 8] x) => (float[rows, 8] a, float[rows, 8] y, float[rows, 8] z)
<float[1] w = {3.0}>
{
    a = Mul (x, w)
    b = Abs (a)
    i = Cast <to = 6> (b)
    y = Neg (a)
    j = Cast <to = 1> (i)
    z = Add (j, b)
}
"""


def halves_of(folder: Path, opset: int = 17, text: str = TEXT) -> Halves:
    """Cut at `a`, an output as well, `b` and the INT32 `i`."""
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}').SerializeToString())
    return split_onnx(path, read_graph(path), frozenset({0, 1, 2}))


def compared(folder: Path, halves: Halves, rows: int = 3) -> dict[str, float]:
    """By output: the largest difference from the whole."""
    session = session_of(folder / "model.onnx", BASIC)
    feed = random_feed(session, rows)
    got = recomposed(halves, feed, BASIC)
    return {name: float(np.abs(got[name] - array).max()) for name, array in run(session, feed).items()}


def ranges_of(folder: Path, halves: Halves) -> Ranges:
    feed = random_feed(session_of(folder / "model.onnx"), 3)
    head = run(session_of(halves.head.files[MODEL_FILE], BASIC), feed)
    return {name: (float(head[name].min()), float(head[name].max())) for name in halves.cut}


def test_int8_sends_a_quarter_and_is_off_by_half_a_step(tmp_path: Path) -> None:
    halves = halves_of(tmp_path)
    ranges = ranges_of(tmp_path, halves)
    coded = with_codec(halves, "int8", ranges)
    assert coded.cut == ("a_int8", "i", "b_int8")
    assert [(one.name, one.datatype) for one in coded.head.outputs] == [
        ("a_int8", "UINT8"),
        ("i", "INT32"),
        ("b_int8", "UINT8"),
        ("a", "FP32"),
    ]
    assert coded.tail.inputs == coded.head.outputs[:3]
    assert coded.tail.inputs[0].shape == ("rows", 8)
    steps = {name: (max(high, 0) - min(low, 0)) / 255 for name, (low, high) in ranges.items()}
    errors = compared(tmp_path, coded)
    assert errors["a"] == 0
    assert 0 < errors["y"] <= 0.501 * steps["a"]
    assert 0 < errors["z"] <= 0.501 * steps["b"]


def test_fp16_sends_half_and_rounds(tmp_path: Path) -> None:
    coded = with_codec(halves_of(tmp_path), "fp16")
    assert [one.datatype for one in coded.tail.inputs] == ["FP16", "INT32", "FP16"]
    errors = compared(tmp_path, coded)
    assert errors["a"] == 0
    assert 0 < errors["y"] < 10 * 2**-11


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_coded_halves_are_valid_and_their_own(tmp_path: Path, codec: CutCodec) -> None:
    halves = halves_of(tmp_path)
    coded = with_codec(halves, codec, ranges_of(tmp_path, halves))
    for half in (coded.head, coded.tail):
        model = onnx.ModelProto.FromString(half.files[MODEL_FILE])
        onnx.checker.check_model(model, full_check=True)
        facts = {one.key: one.value for one in model.metadata_props}
        assert facts["upwell.split.codec"] == codec
        assert json.loads(facts["upwell.split.cut"]) == list(coded.cut)
        assert [one.name for one in model.graph.output] == [one.name for one in half.outputs]
    assert coded.digest != halves.digest


def test_scale_and_zero_point_are_in_both_graphs(tmp_path: Path) -> None:
    halves = halves_of(tmp_path)
    coded = with_codec(halves, "int8", {"a": (-1.0, 4.1), "b": (2.0, 5.1), "i": (0.0, 0.0)})
    found = []
    for half in (coded.head, coded.tail):
        graph = onnx.ModelProto.FromString(half.files[MODEL_FILE]).graph
        found.append({one.name: numpy_helper.to_array(one) for one in graph.initializer if "int8" in one.name})
    assert found[0] == found[1]
    assert found[0] == {
        "a_int8_scale": np.float32(0.02),
        "a_int8_zero_point": np.uint8(50),
        "b_int8_scale": np.float32(0.02),  # 0 is in it
        "b_int8_zero_point": np.uint8(0),
    }


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.floats(-(2.0**99), 2.0**99, width=32), st.floats(-(2.0**99), 2.0**99, width=32)).map(sorted),
    st.booleans(),
)
def test_any_range_keeps_zero_and_its_own_ends(
    tmp_path_factory: pytest.TempPathFactory, ends: list[float], is_flat: bool
) -> None:
    low, high = ends[0], ends[0] if is_flat else ends[1]
    folder = tmp_path_factory.mktemp("range")
    text = "one (float[3] x) => (float[3] y) {\n a = Identity (x)\n y = Identity (a)\n}"
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]>\n{text}').SerializeToString())
    coded = with_codec(split_onnx(path, read_graph(path), frozenset({0})), "int8", {"a": (low, high)})
    values = np.array([low, 0, high], np.float32)
    got = recomposed(coded, {"x": values}, BASIC)["y"]
    assert got[1] == 0
    np.testing.assert_allclose(got, values, rtol=0, atol=max(0.51 * (max(high, 0) - min(low, 0)) / 255, 1e-35))


def test_a_name_that_is_taken_is_not_taken_again(tmp_path: Path) -> None:
    text = TEXT.replace(" b)", " a_fp16)").replace("b =", "a_fp16 =").replace("(b)", "(a_fp16)")
    coded = with_codec(halves_of(tmp_path, text=text), "fp16")
    assert coded.cut == ("a_fp16_", "i", "a_fp16_fp16")
    assert compared(tmp_path, coded)["a"] == 0


def test_weights_beside_a_half_stay(tmp_path: Path) -> None:
    halves = halves_of(tmp_path)
    model = onnx.ModelProto.FromString(halves.head.files[MODEL_FILE])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1000, np.float32), "large"))
    beside = ModelHalf(files_of(model, most_inline_bytes=0), halves.head.inputs, halves.head.outputs)
    coded = with_codec(Halves(beside, halves.tail, halves.cut), "fp16")
    assert coded.head.files[WEIGHTS_FILE] == beside.files[WEIGHTS_FILE]
    assert coded.head.files[MODEL_FILE] != beside.files[MODEL_FILE]


@pytest.mark.parametrize(
    ("codec", "opset", "ranges", "message"),
    [
        ("int8", 17, {"a": (0.0, 1.0)}, r"int8 needs the range of 'b'; there are only samples of \['a'\]"),
        ("int8", 17, None, "there are only samples of none"),
        ("int8", 17, {"a": (1.0, 0.0)}, "expected two numbers, the smaller first"),
        ("int8", 17, {"a": (0.0, float("nan"))}, "expected two numbers"),
        (
            "int8",
            9,
            {"a": (0.0, 1.0), "b": (0.0, 1.0)},
            "int8 at the cut needs opset 10 or later, but the model has opset 9",
        ),
        ("fp16", 17, {"b": (float("nan"), float("nan"))}, "values of 'b' exceed 65504, .* or are NaN"),
        ("fp16", 17, {"b": (-70_000.0, 1.0)}, "values of 'b' exceed 65504, the largest FP16 number"),
    ],
)
def test_what_cannot_be_encoded_is_refused(
    tmp_path: Path, codec: CutCodec, opset: int, ranges: Ranges | None, message: str
) -> None:
    halves = halves_of(tmp_path, opset)
    with pytest.raises(ConfigError, match=message):
        with_codec(halves, codec, ranges)


def test_a_cut_without_floats_has_nothing_to_encode(tmp_path: Path) -> None:
    text = "ints (int32[2] x) => (int32[2] y) {\n a = Neg (x)\n y = Abs (a)\n}"
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}').SerializeToString())
    halves = split_onnx(path, read_graph(path), frozenset({0}))
    with pytest.raises(ConfigError, match="no tensor in this cut is FP32"):
        with_codec(halves, "fp16")
