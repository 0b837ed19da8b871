"""Which quantized models a TFLite package computes rightly, and which it answers with garbage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.in_process import InProcess
from tests.unit.tflite_for_tests import linear
from tests.unit.weights_for_tests import linear_weights
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.edge.runtimes.tflite.runtime import TfliteRuntime
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS

pytestmark = pytest.mark.tflite_runtime


def relative_error(path: Path, package: str) -> float:
    """Of the linear model's answer, against its weights in float."""
    weights, bias = linear_weights(0, 64, 10)
    x = np.random.default_rng(1).standard_normal((1, 64), np.float32)
    scores: Array = TfliteRuntime(path, RuntimeOptions.model_validate({"package": package})).run({"x": x})["scores"]
    right = x @ weights + bias
    return float(np.linalg.norm(scores - right) / np.linalg.norm(right))


def test_dynamic_range_models_are_garbage_in_tflite_runtime_and_nothing_says_so(dynamic_range_model: Path) -> None:
    assert relative_error(dynamic_range_model, "ai_edge_litert") < 0.05
    assert relative_error(dynamic_range_model, "tflite_runtime") > 0.5


def test_static_int8_models_are_right_in_both() -> None:
    digits = ASSETS / "edge" / "digits" / "model.tflite"
    new, old = (TfliteRuntime(digits, RuntimeOptions(package=name)) for name in ("ai_edge_litert", "tflite_runtime"))
    given = np.random.default_rng(2).random((100, 1, 1, 8, 8), np.float32)
    answers = [(new.run({"x": x})["logits"], old.run({"x": x})["logits"]) for x in given]
    assert np.mean([a.argmax() == b.argmax() for a, b in answers]) >= 0.97
    assert max(np.abs(a - b).max() for a, b in answers) < 1


def test_what_model_quantize_makes_is_right_in_both(in_process: InProcess, tmp_path: Path) -> None:
    plain = linear(tmp_path, rows=1, features=64, classes=10)
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(3).standard_normal((200, 64), np.float32))
    assert in_process("model", "quantize", plain, "--data", data).code == 0
    for package in ("ai_edge_litert", "tflite_runtime"):
        assert relative_error(plain.with_suffix(".int8.tflite"), package) < 0.05
