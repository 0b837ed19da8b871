"""Models that are no chain of layers on floats: control flow, text, masks, outputs in the middle, no range at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import helper, numpy_helper

from tests.unit import models_for_tests as onnx_models
from tests.unit import tflite_for_tests as tflite_models
from tests.unit.edge.quantize import digit_models
from tests.unit.tflite_for_tests import Op, T
from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array
from upwell.tools.quantize import model_quantization
from upwell.tools.quantize.model_quantization import Quantized, quantize_model
from upwell.tools.quantize.onnx_graph import read_model
from upwell.tools.quantize.quantizer import QuantizeSettings, Target
from upwell.tools.terminal import quiet

RANDOM = np.random.default_rng(0)
ROWS, WIDTH = 200, 8


def numbers(*shape: int) -> Array:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def silently(items: Sequence[Any], doing: str) -> Iterator[Any]:
    return iter(items)


def quantized(
    model: Path, arrays: Mapping[str, Any], keep: Sequence[str] = (), settings: QuantizeSettings | None = None
) -> Quantized:
    data = model.with_suffix(".npz")
    np.savez(data, **arrays)
    with quiet():
        return quantize_model(model, data, model.with_suffix(".out"), settings or QuantizeSettings(), keep, silently)


def onnx_model(path: Path, nodes: Sequence[Any], inputs: Sequence[Any] = (), **constants: Array) -> Path:
    """`x` FP32 [rows, 8] and further `inputs` -> `y`; weights `w` and `w2` are there."""
    weights = {"w": numbers(WIDTH, WIDTH), "w2": numbers(WIDTH, 4)}
    x, y = onnx_models.tensor("x", ["rows", WIDTH]), onnx_models.tensor("y", ["rows", 4])
    return onnx_models.save(path, nodes, [x, *inputs], [y], {**weights, **constants})


def product(left: str, right: str, out: str, name: str) -> Any:
    return helper.make_node("MatMul", [left, right], [out], name=name)


def with_branches(path: Path) -> Path:
    """`a = x · w`, then one of two bodies that read `a` from outside, then `· w2`."""
    then, other = (
        helper.make_graph([node], "body", [], [onnx_models.tensor(node.output[0], ["rows", WIDTH])])
        for node in (product("a", "w", "t", "inner"), helper.make_node("Relu", ["a"], ["e"]))
    )
    nodes = [
        product("x", "w", "a", "first"),
        helper.make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_large"]),
        helper.make_node("If", ["is_large"], ["b"], name="branch", then_branch=then, else_branch=other),
        product("b", "w2", "y", "last"),
    ]
    return onnx_model(path, nodes, zero=np.array(0, np.float32))


@pytest.mark.parametrize("target", ["cpu", "npu"])
@pytest.mark.parametrize("kind", ["digits", "branches"])
def test_the_file_is_what_onnx_calls_a_model(tmp_path: Path, kind: str, target: Target) -> None:
    path = tmp_path / "model.onnx"
    if kind == "digits":
        arrays = {"x": digit_models.digits()[0][:ROWS]}
        digit_models.write_onnx(path)
    else:
        arrays = {"x": numbers(ROWS, WIDTH)}
        with_branches(path)
    made = quantized(path, arrays, settings=QuantizeSettings(target=target))
    onnx.checker.check_model(made.model, full_check=True)


@pytest.mark.parametrize("target", ["cpu", "npu"])
def test_a_model_that_onnxruntime_breaks_is_named(tmp_path: Path, target: Target) -> None:
    """An input that is an output, too, gets its name twice."""
    path = onnx_model(tmp_path / "echo.onnx", [product("x", "w2", "y", "only")])
    made = onnx.load(path)
    made.graph.output.append(made.graph.input[0])
    onnx.save(made, path)
    words = r"echo.onnx: onnxruntime did not make a working model of it: .*Duplicate"
    with pytest.raises(ConfigError, match=words) as found:
        quantized(path, {"x": numbers(ROWS, WIDTH)}, settings=QuantizeSettings(target=target))
    assert "upwell-quantize-" not in str(found.value)


def test_operators_that_onnxruntime_leaves_float_are_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["one"]),
        helper.make_node("LSTM", ["one", "wi", "wr"], ["", "last"], hidden_size=4, name="cells"),
        helper.make_node("Squeeze", ["last", "axis"], ["y"]),
    ]
    axis, wi, wr = np.array([0], np.int64), numbers(1, 16, WIDTH), numbers(1, 16, 4)
    path = onnx_model(tmp_path / "lstm.onnx", nodes, axis=axis, wi=wi, wr=wr)
    with pytest.raises(ConfigError, match="nothing was quantized: onnxruntime leaves LSTM, Squeeze, Unsqueeze float"):
        quantized(path, {"x": numbers(ROWS, WIDTH)})


def test_text_is_calibrated_on_as_callers_send_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LabelEncoder", ["word"], ["code"], domain="ai.onnx.ml", keys_strings=["on"],
                         values_floats=[1.0], default_float=0.0),
        helper.make_node("Mul", ["x", "code"], ["m"], name="switch"),
        product("m", "w2", "y", "last"),
    ]  # fmt: skip
    path = onnx_model(tmp_path / "text.onnx", nodes, [onnx_models.tensor("word", ["rows", 1], "BYTES")])
    model = onnx.load(str(path))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    path.write_bytes(model.SerializeToString())
    word = np.array([["on"], ["off"]] * (ROWS // 2))
    made = quantized(path, {"x": numbers(ROWS, WIDTH), "word": word})
    assert made.report.comparison.worst_error < 0.15
    assert max(layer.error for layer in made.report.layers if layer.node == "last") > 0


def test_a_mask_of_minus_infinity_is_named_and_can_be_kept_float(tmp_path: Path) -> None:
    nodes = [
        product("x", "w", "s", "scores"),
        helper.make_node("Where", ["mask", "s", "never"], ["masked"], name="where"),
        helper.make_node("Softmax", ["masked"], ["p"], name="softmax"),
        product("p", "w2", "y", "last"),
    ]
    mask = onnx_models.tensor("mask", ["rows", WIDTH], "BOOL")
    path = onnx_model(tmp_path / "mask.onnx", nodes, [mask], never=np.array(-np.inf, np.float32))
    shown = RANDOM.random((ROWS, WIDTH)) > 0.3
    shown[:, 0] = True
    arrays = {"x": numbers(ROWS, WIDTH), "mask": shown}
    with pytest.raises(
        ConfigError, match="'masked' is not finite on some row of the data; keep its nodes float with --keep-float"
    ):
        quantized(path, arrays)
    made = quantized(path, arrays, ["where", "softmax"])
    precision = {layer.node: layer.precision for layer in made.report.layers}
    assert precision == {"scores": "int8", "where": "float", "softmax": "float", "last": "int8"}
    assert made.report.comparison.worst_error < 0.15


HALF = np.ones((WIDTH, 4), np.float16)


@pytest.mark.parametrize("kind", ["initializer", "constant", "identity", "transpose", "body", "bfloat16"])
def test_layers_in_half_precision_are_refused_since_they_would_stay_as_they_are(tmp_path: Path, kind: str) -> None:
    datatype = onnx.TensorProto.BFLOAT16 if kind == "bfloat16" else onnx.TensorProto.FLOAT16
    to = datatype if kind == "bfloat16" else onnx.TensorProto.FLOAT
    makers = {
        "initializer": [],
        "constant": [helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(HALF))],
        "identity": [helper.make_node("Identity", ["w16"], ["v"])],
        "transpose": [helper.make_node("Transpose", ["turned"], ["v"])],
        "bfloat16": [helper.make_node("Cast", ["w16"], ["v"], to=to)],
        "body": [],
    }
    weights = "w16" if kind in ("initializer", "body") else "v"
    layers = [
        helper.make_node("Cast", ["x"], ["half"], to=datatype),
        *makers[kind],
        product("half", weights, "h", "scores"),
        helper.make_node("Cast", ["h"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    if kind == "body":
        other = helper.make_node("MatMul", ["x", "w2"], ["y"])
        then, otherwise = (
            helper.make_graph(nodes, "body", [], [onnx_models.tensor("y", ["rows", 4])]) for nodes in (layers, [other])
        )
        layers = [helper.make_node("If", ["is_on"], ["y"], then_branch=then, else_branch=otherwise)]
    path = onnx_model(tmp_path / "half.onnx", layers, w16=HALF, turned=HALF.T.copy(), is_on=np.array(True))
    with pytest.raises(ConfigError, match="MatMul 'scores' computes in half precision; expected float32"):
        read_model(path)


def test_weights_that_are_only_stored_in_half_precision_are_int8(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["w16"], ["v"], to=onnx.TensorProto.FLOAT),
        product("x", "v", "y", "scores"),
    ]
    made = quantized(onnx_model(tmp_path / "stored.onnx", nodes, w16=HALF), {"x": numbers(ROWS, WIDTH)})
    assert [layer.precision for layer in made.report.layers if layer.node == "scores"] == ["int8"]


def test_what_the_float_model_leaves_undefined_is_said(tmp_path: Path) -> None:
    nodes = [product("x", "w", "s", "scores"), helper.make_node("Log", ["s"], ["y"], name="log")]
    made = quantized(onnx_model(tmp_path / "log.onnx", nodes), {"x": numbers(ROWS, WIDTH)})
    said = [one for one in made.report.warnings if "not finite" in one]
    assert len(said) == 1
    assert said[0].startswith("output 'y' of the float model has ")


def test_what_looks_up_integers_in_int8_weights_is_int8(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["found"], name="lookup"),
        helper.make_node("Add", ["found", "x"], ["sum"], name="add"),
        product("sum", "w2", "y", "last"),
    ]
    path = onnx_model(
        tmp_path / "table.onnx", nodes, [onnx_models.tensor("ids", ["rows"], "INT64")], table=numbers(100, WIDTH)
    )
    made = quantized(path, {"x": numbers(ROWS, WIDTH), "ids": RANDOM.integers(0, 100, ROWS)})
    assert {layer.node: layer.precision for layer in made.report.layers}["lookup"] == "int8"


# --- TFLite


def tflite_model(path: Path, *, log: bool = False, outputs: Sequence[str] = ("y",)) -> Path:
    """`a` FP32 [rows, 8] -> dense `b` -> its logarithm `c` if wanted -> dense `y`."""
    dense = schema.BuiltinOperator.FULLY_CONNECTED, schema.BuiltinOptions.FullyConnectedOptions
    tensors = [
        T("a", (-1, WIDTH)),
        T("w", (WIDTH, WIDTH), data=numbers(WIDTH, WIDTH)),
        T("b", (-1, WIDTH)),
        T("w2", (4, WIDTH), data=numbers(4, WIDTH)),
        T("y", (-1, 4)),
        *([T("c", (-1, WIDTH))] if log else []),
    ]
    operators = [
        Op(dense[0], (0, 1, -1), (2,), dense[1], schema.FullyConnectedOptionsT()),
        *([Op(schema.BuiltinOperator.LOG, (2,), (5,))] if log else []),
        Op(dense[0], (5 if log else 2, 3, -1), (4,), dense[1], schema.FullyConnectedOptionsT()),
    ]
    names = [tensor.name for tensor in tensors]
    return tflite_models.save(path, tensors, operators, [0], [names.index(name) for name in outputs])


def test_values_without_a_range_do_not_reach_tflites_kernels(tmp_path: Path) -> None:
    """A kernel made for a scale of NaN ends the process."""
    path = tflite_model(tmp_path / "log.tflite", log=True)
    with pytest.raises(ConfigError, match=r"log.tflite: '2 FULLY_CONNECTED' have values that are not finite"):
        quantized(path, {"a": numbers(ROWS, WIDTH)})
    made = quantized(path, {"a": numbers(ROWS, WIDTH)}, ["2 FULLY_CONNECTED"])
    assert [layer.precision for layer in made.report.layers] == ["int8", "float", "float"]


@pytest.mark.parametrize(("interface", "keep"), [("float", []), ("int8", ["1 FULLY_CONNECTED"])])
def test_a_model_that_the_quantizer_breaks_is_named(tmp_path: Path, interface: Any, keep: list[str]) -> None:
    path = tflite_model(tmp_path / "two.tflite", outputs=["b", "y"])
    with pytest.raises(
        ConfigError, match=r"two.tflite: ai-edge-quantizer did not produce a working model: .* read the output 'b'"
    ):
        quantized(path, {"a": numbers(ROWS, WIDTH)}, keep, QuantizeSettings(interface=interface))


def test_an_output_that_is_read_stays_one_with_int8_interfaces(tmp_path: Path) -> None:
    path = tflite_model(tmp_path / "two.tflite", outputs=["b", "y"])
    made = quantized(path, {"a": numbers(ROWS, WIDTH)}, settings=QuantizeSettings(interface="int8"))
    assert [one.name for one in made.report.comparison.outputs] == ["b", "y"]


# --- Before the work begins


def test_too_little_room_for_temporary_files_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = digit_models.write_onnx(tmp_path / "digits.onnx")
    monkeypatch.setattr(model_quantization, "_ROOM", 1 << 50)
    with pytest.raises(ConfigError, match=r"no room for .* MiB of temporary files; set TMPDIR to another folder"):
        quantized(path, {"x": digit_models.digits()[0][:ROWS]})
