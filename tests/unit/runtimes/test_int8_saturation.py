"""int8 sums that overflow: which nodes are named, and that they really overflow on such a CPU."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.unit.models_for_tests import linear, save, tensor
from upwell.edge.runtimes.onnx import sessions
from upwell.edge.runtimes.onnx.int8_saturation import saturates_here, saturation
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
from upwell.tools.demo.digit_data import ASSETS

OLD = {"sse4_1", "avx2", "fma"}
"""The flags of a CPU without VNNI."""
IN, OUT = 64, 16


def weights(dtype: Any, largest: int) -> Any:
    """INT8 or UINT8 [64, 16], all of one sign: what saturates most."""
    lowest = largest // 2 if dtype == np.int8 else 0
    return np.random.default_rng(0).integers(lowest, largest + 1, (IN, OUT)).astype(dtype)


def quantized(
    folder: Path, form: str, *, activations: Any = np.uint8, dtype: Any = np.int8, largest: int = 127
) -> Path:
    """`y = x @ w * 0.01`, x FP32 [1, 64] from 0 to 1, in one of the forms that quantizers write."""
    constants = {
        "w": weights(dtype, largest),
        "scale": np.float32(1 / 255),
        "zero": activations(0 if activations == np.uint8 else -128),
        "w_scale": np.float32(0.01),
        "w_zero": dtype(0 if dtype == np.int8 else 128),
    }
    dequantized = helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], name="weights")
    quantize = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize")
    dequantize = helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["f"], name="dequantize")
    back = [helper.make_node("Cast", ["i"], ["if"], to=1), helper.make_node("Mul", ["if", "all"], ["y"])]
    if form == "qdq":
        nodes = [quantize, dequantize, dequantized, helper.make_node("MatMul", ["f", "wf"], ["y"], name="product")]
    elif form == "dynamic":
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("MatMulInteger", ["q", "w", "z", "w_zero"], ["i"], name="product"),
            helper.make_node("Mul", ["s", "w_scale"], ["all"]),
            *back,
        ]
    else:
        nodes = [
            quantize,
            helper.make_node("MatMulInteger", ["q", "w", "zero", "w_zero"], ["i"], name="product"),
            *back,
        ]
        constants["all"] = np.float32(0.01 / 255)
    if form == "constant nodes":
        made = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a)) for n, a in constants.items()]
        nodes, constants = [*made, *nodes], {}
    return save(folder / f"{form}.onnx", nodes, [tensor("x", [1, IN])], [tensor("y", [1, OUT])], constants)


FORMS = ["qdq", "dynamic", "integer", "constant nodes"]


@pytest.mark.parametrize("form", FORMS)
def test_the_nodes_are_named(tmp_path: Path, form: str) -> None:
    said = saturation(quantized(tmp_path, form), OLD)
    assert said.startswith("1 node multiplies 8-bit activations by int8 weights over 64, which overflows on this CPU")
    assert ": product; quantize with uint8 weights or reduce_range" in said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("safe", [{"dtype": np.uint8, "largest": 255}, {"largest": 64}])
def test_safe_weights_are_not(tmp_path: Path, form: str, safe: dict[str, Any]) -> None:
    assert saturation(quantized(tmp_path, form, **safe), OLD) == ""


def test_int8_activations_of_a_qdq_model_become_uint8(tmp_path: Path) -> None:
    assert ": product;" in saturation(quantized(tmp_path, "qdq", activations=np.int8), OLD)
    assert saturation(quantized(tmp_path, "integer", activations=np.int8), OLD) == ""


@pytest.mark.parametrize("flags", [{"avx2", "avx_vnni"}, {"avx2", "avx512_vnni"}, {"sse4_1"}, {"asimd", "asimddp"}])
def test_other_cpus_add_exactly(tmp_path: Path, flags: set[str]) -> None:
    assert saturation(quantized(tmp_path, "qdq"), flags) == ""


def test_float_models_and_those_of_the_demo_are_safe(tmp_path: Path) -> None:
    assert saturation(linear(tmp_path), OLD) == ""
    for name in ("digits", "pages"):
        assert saturation(ASSETS / "edge" / name / "model.onnx", OLD) == ""


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x3a\x7f"])
def test_what_cannot_be_read_is_left_to_the_runtime(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert saturation(path, OLD) == ""


def test_such_a_model_is_run_exactly_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "saturation", lambda path: saturation(path, OLD))
    path = quantized(tmp_path, "qdq")
    assert sessions.cpu_settings(path) == {"session.x64quantprecision": "1"}
    assert sessions.cpu_settings(linear(tmp_path)) == {}
    with caplog.at_level(logging.INFO):
        runtime = OnnxRuntime(path)
    assert "which overflows on this CPU (no VNNI): product" in caplog.text
    x = np.ones((1, IN), np.float32)
    np.testing.assert_allclose(runtime.run({"x": x})["y"], x @ (weights(np.int8, 127) * 0.01), rtol=0.01)


RUN = """
import sys, numpy, onnxruntime
for path, exact in zip(sys.argv[1::2], sys.argv[2::2]):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.add_session_config_entry("session.x64quantprecision", exact)
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    print(*session.run(None, {"x": numpy.ones((1, 64), "f4")})[0][0])
"""


def test_they_really_overflow(tmp_path: Path) -> None:
    """On this CPU if it is such a one, else on a Haswell that qemu plays."""
    emulator = shutil.which("qemu-x86_64")
    if not saturates_here() and (emulator is None or sys.platform != "linux"):
        pytest.skip("this CPU adds exactly, and there is no qemu-x86_64 to play one that does not (Debian: qemu-user)")
    prefix = [] if saturates_here() else [str(emulator), "-cpu", "Haswell"]
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("qdq", {}, "0"), ("qdq", {}, "1"), ("integer", {}, "0"), ("integer", {}, "1"),
        ("qdq", {"activations": np.int8}, "0"), ("qdq", {"activations": np.int8}, "1"),
        ("qdq", {"largest": 64}, "0"), ("qdq", {"dtype": np.uint8, "largest": 255}, "0"),
    ]  # fmt: skip
    arguments, expected = [], []
    for index, (form, kind, exact) in enumerate(cases):
        folder = tmp_path / str(index)
        folder.mkdir()
        arguments += [str(quantized(folder, form, **kind)), exact]
        zero = 128 if kind.get("dtype") == np.uint8 else 0
        used = weights(kind.get("dtype", np.int8), kind.get("largest", 127)).astype(np.float32)
        expected.append((used - zero).sum(axis=0) * 0.01)
    command = [*prefix, sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    answers = [np.array(line.split(), np.float32) for line in done.stdout.splitlines()]
    errors = [
        float(np.linalg.norm(got - right) / np.linalg.norm(right)) for got, right in zip(answers, expected, strict=True)
    ]
    for (form, kind, exact), error in zip(cases, errors, strict=True):
        overflows = not kind.get("largest") and exact == "0"
        assert (error > 0.1) if overflows else (error < 0.01), (form, kind, exact, error)
