"""What every runtime must do, run on each of them: ONNX Runtime, TFLite through both packages, and the fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit import models_for_tests as onnx_models
from tests.unit import tflite_for_tests as tflite_models
from tests.unit.tflite_for_tests import TFLITE_PACKAGES
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import DTYPES, Array, TensorSpec

ROWS = -1


@dataclass(frozen=True)
class Kind:
    """One runtime and how to make the models of this suite for it."""

    name: str
    label: str
    linear: Callable[[Path], Runtime]
    two: Callable[[Path], Runtime]
    identity: Callable[[Path, str], Runtime]
    unsupported: frozenset[str] = frozenset()


def _onnx_kind() -> Kind:
    return Kind(
        "onnx",
        "onnxruntime",
        lambda directory: load_runtime(onnx_models.linear(directory)),
        lambda directory: load_runtime(onnx_models.two_in_two_out(directory)),
        lambda directory, datatype: load_runtime(onnx_models.identity(directory, datatype, (2, 2))),
    )


def _tflite_kind(package: Any, unsupported: frozenset[str]) -> Kind:
    options = RuntimeOptions(package=package)
    return Kind(
        "tflite",
        package.replace("_", "-"),
        lambda directory: load_runtime(tflite_models.linear(directory), options),
        lambda directory: load_runtime(tflite_models.two_in_two_out(directory), options),
        lambda directory, datatype: load_runtime(tflite_models.identity(directory, datatype), options),
        unsupported,
    )


def _fake_linear(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    weights, bias = onnx_models.linear_weights()
    return {"scores": inputs["x"] @ weights + bias}


def _fake_kind() -> Kind:
    threes = [TensorSpec(name, "FP32", (ROWS, 3)) for name in ("a", "b", "sum", "product")]
    return Kind(
        "fake",
        "fake",
        lambda _: FakeRuntime(
            _fake_linear, [TensorSpec("x", "FP32", (ROWS, 8))], [TensorSpec("scores", "FP32", (ROWS, 3))]
        ),
        lambda _: FakeRuntime(
            lambda inputs: {"sum": inputs["a"] + inputs["b"], "product": inputs["a"] * inputs["b"]},
            threes[:2],
            threes[2:],
        ),
        lambda _, datatype: FakeRuntime(
            lambda inputs: {"y": inputs["x"]}, [TensorSpec("x", datatype, (2, 2))], [TensorSpec("y", datatype, (2, 2))]
        ),
    )


KINDS = {
    "onnx": _onnx_kind(),
    "ai_edge_litert": _tflite_kind("ai_edge_litert", frozenset()),
    "tflite_runtime": _tflite_kind("tflite_runtime", frozenset({"BF16", "UINT16"})),
    "fake": _fake_kind(),
}


@pytest.fixture(params=["onnx", *TFLITE_PACKAGES, "fake"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def linear(kind: Kind, tmp_path: Path) -> Iterator[Runtime]:
    runtime = kind.linear(tmp_path)
    yield runtime
    runtime.close()


@pytest.fixture
def two(kind: Kind, tmp_path: Path) -> Iterator[Runtime]:
    runtime = kind.two(tmp_path)
    yield runtime
    runtime.close()


def rows(count: int, features: int = 8, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((count, features), np.float32)


def expected(x: Array) -> Array:
    weights, bias = onnx_models.linear_weights()
    result: Array = x @ weights + bias
    return result


def assert_works(runtime: Runtime, x: Array) -> None:
    np.testing.assert_allclose(runtime.run({"x": x})["scores"], expected(x), rtol=1e-4, atol=1e-5)


class TestRuntimeContract:
    def test_says_what_it_is(self, kind: Kind, linear: Runtime) -> None:
        assert linear.name == kind.name
        assert linear.version.split()[0] == kind.label
        assert linear.inputs == (TensorSpec("x", "FP32", (ROWS, 8)),)
        assert linear.outputs == (TensorSpec("scores", "FP32", (ROWS, 3)),)
        assert linear.placement.accelerator == ""
        assert linear.placement.nodes_on_accelerator == 0
        assert linear.instances >= 1

    @pytest.mark.parametrize("count", [1, 7])
    def test_gives_the_right_numbers(self, linear: Runtime, count: int) -> None:
        assert_works(linear, rows(count))

    def test_takes_another_number_of_rows_each_time(self, linear: Runtime) -> None:
        for count in (3, 1, 5, 5, 2):
            assert_works(linear, rows(count, seed=count))

    def test_takes_several_inputs_and_gives_several_outputs(self, two: Runtime) -> None:
        a, b = rows(4, 3, seed=2), rows(4, 3, seed=3)
        assert [spec.name for spec in two.inputs] == ["a", "b"]
        assert [spec.name for spec in two.outputs] == ["sum", "product"]
        answer = two.run({"b": b, "a": a})
        assert list(answer) == ["sum", "product"]
        np.testing.assert_allclose(answer["sum"], a + b, rtol=1e-6)
        np.testing.assert_allclose(answer["product"], a * b, rtol=1e-6)

    def test_gives_fresh_arrays(self, linear: Runtime) -> None:
        first = linear.run({"x": rows(2, seed=4)})["scores"]
        kept = first.copy()
        second = linear.run({"x": rows(2, seed=5)})["scores"]
        np.testing.assert_array_equal(first, kept)
        second[:] = 99
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_allclose(linear.run({"x": rows(2, seed=4)})["scores"], kept, rtol=1e-6)

    def test_takes_arrays_that_are_not_contiguous_or_writable(self, linear: Runtime) -> None:
        x = rows(8).T[:, :4].T
        x.flags.writeable = False
        before = x.copy()
        assert_works(linear, x)
        np.testing.assert_array_equal(x, before)

    @pytest.mark.parametrize(
        ("inputs", "said"),
        [
            pytest.param({"x": np.zeros((2, 8), np.float64)}, ["'x' FP32 [-1, 8]", "float64 [2, 8]"], id="dtype"),
            pytest.param({"x": np.zeros((2, 8), ">f4")}, ["'x' FP32 [-1, 8]", ">f4"], id="byte order"),
            pytest.param({"x": np.zeros((2, 9), np.float32)}, ["'x' FP32 [-1, 8]", "[2, 9]"], id="fixed dimension"),
            pytest.param({"x": np.zeros(8, np.float32)}, ["'x' FP32 [-1, 8]", "[8]"], id="rank too low"),
            pytest.param({"x": np.zeros((1, 2, 8), np.float32)}, ["'x' FP32 [-1, 8]", "[1, 2, 8]"], id="rank too high"),
            pytest.param({"x": np.zeros((2, 8), object)}, ["'x' FP32 [-1, 8]", "object"], id="objects"),
            pytest.param({}, ["missing", "'x' FP32 [-1, 8]"], id="missing"),
            pytest.param({"y": np.zeros((2, 8), np.float32)}, ["unknown input 'y'", "missing"], id="wrong name"),
            pytest.param(
                {"x": np.zeros((2, 8), np.float32), "y": np.zeros(1)}, ["unknown input 'y'", "'x'"], id="one too many"
            ),
            pytest.param({"x": [[0.0] * 8]}, ["'x' FP32 [-1, 8]", "list"], id="no array"),
            pytest.param({"x": None}, ["missing", "'x' FP32 [-1, 8]"], id="nothing"),
        ],
    )
    def test_refuses_wrong_inputs_and_stays_usable(self, linear: Runtime, inputs: Any, said: list[str]) -> None:
        with pytest.raises(InvalidRequest) as error:
            linear.run(inputs)
        for words in said:
            assert words in str(error.value)
        assert_works(linear, rows(2))

    def test_survives_inputs_that_do_not_fit_each_other(self, two: Runtime) -> None:
        with pytest.raises((InvalidRequest, ModelFailed)):
            two.run({"a": rows(4, 3), "b": rows(5, 3)})
        a = rows(2, 3)
        for _ in range(2):
            np.testing.assert_allclose(two.run({"a": a, "b": a})["sum"], a + a, rtol=1e-6)

    def test_closes_twice_and_then_refuses_to_run(self, linear: Runtime) -> None:
        linear.close()
        linear.close()
        with pytest.raises(ModelFailed, match="closed"):
            linear.run({"x": rows(1)})

    def test_serves_threads_at_one_time(self, linear: Runtime) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda seed: assert_works(linear, rows(1 + seed % 3, seed=seed)), range(200)))

    @pytest.mark.parametrize("datatype", DTYPES)
    def test_passes_every_datatype_or_says_so_at_load(self, kind: Kind, tmp_path: Path, datatype: str) -> None:
        if datatype in kind.unsupported:
            with pytest.raises(ConfigError, match="cannot run the model"):
                kind.identity(tmp_path, datatype)
            return
        runtime = kind.identity(tmp_path, datatype)
        assert runtime.inputs == (TensorSpec("x", datatype, (2, 2)),)
        values = [b"", b"a\0b"] if datatype == "BYTES" else [0, 1]
        x = np.array([values, values[::-1]], dtype=DTYPES[datatype])
        y = runtime.run({"x": x})["y"]
        assert y.dtype == DTYPES[datatype]
        np.testing.assert_array_equal(y, x)
        y[:] = values[0]
        np.testing.assert_array_equal(runtime.run({"x": x})["y"], x)

    def test_takes_only_bytes_for_a_bytes_input(self, kind: Kind, tmp_path: Path) -> None:
        runtime = kind.identity(tmp_path, "BYTES")
        with pytest.raises(InvalidRequest, match="'x' must contain only bytes"):
            runtime.run({"x": np.array([["text", b""], [None, 3]], object)})
