"""`upwell model init` on models that scale pixels themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import helper

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import init
from tests.unit import tflite_for_tests as tflite
from tests.unit.models_for_tests import save, tensor
from upwell.shared.tensors import Array

CHANNELS = np.array([123.7, 116.3, 103.5], np.float32).reshape(1, 3, 1, 1)


def normalization(path: Path) -> str:
    return next(line.strip() for line in path.with_name("model.yaml").read_text().splitlines() if "normalize:" in line)


@pytest.mark.parametrize(
    ("operator", "constant", "takes_pixels"),
    [
        ("Mul", np.float32(1 / 127.5), True),
        ("Div", np.float32(255), True),
        ("Sub", CHANNELS, True),
        ("Mul", np.float32(2), False),
        ("Div", CHANNELS / 500, False),
        ("Sub", CHANNELS / 255, False),
        ("Add", CHANNELS, False),
    ],
)
def test_pixels_go_in_as_they_are_where_the_first_arithmetic_is_for_them(
    tmp_path: Path, in_process: InProcess, operator: str, constant: Array, takes_pixels: bool
) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node(operator, ["same", "constant"], ["scaled"]),
        helper.make_node("GlobalAveragePool", ["scaled"], ["means"]),
        helper.make_node("Flatten", ["means"], ["out"]),
    ]
    constants = {"constant": np.asarray(constant)}
    save(tmp_path / "model.onnx", nodes, [tensor("x", ["N", 3, 8, 8])], [tensor("out", ["N", 3])], constants)
    report = init(in_process, tmp_path / "model.onnx")
    assert (", scale: 1}" in normalization(tmp_path / "model.onnx")) == takes_pixels
    assert any("0..255 becomes" in check["comment"] for check in report["check"]) != takes_pixels


def test_a_tflite_model_that_scales_its_pixels(tmp_path: Path, in_process: InProcess) -> None:
    operators = schema.BuiltinOperator
    tensors = [
        tflite.T("pixels", (1, 8, 8, 3), "FP32"),
        tflite.T("factor", (1,), "FP32", np.array([1 / 127.5], np.float32)),
        tflite.T("scaled", (1, 8, 8, 3), "FP32"),
        tflite.T("axes", (2,), "INT32", np.array([1, 2], np.int32)),
        tflite.T("scores", (1, 3), "FP32"),
    ]
    nodes = [
        tflite.Op(operators.MUL, (0, 1), (2,), schema.BuiltinOptions.MulOptions, schema.MulOptionsT()),
        tflite.Op(operators.MEAN, (2, 3), (4,), schema.BuiltinOptions.ReducerOptions, schema.ReducerOptionsT()),
    ]
    tflite.save(tmp_path / "model.tflite", tensors, nodes, [0], [4])
    init(in_process, tmp_path / "model.tflite")
    assert normalization(tmp_path / "model.tflite") == "- normalize: {from: image, scale: 1}"
