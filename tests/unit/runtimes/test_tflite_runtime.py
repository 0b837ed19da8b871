"""What is particular to TFLite."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from tests.unit.tflite_for_tests import TFLITE_PACKAGES, Op, T, add, identity, linear, save, two_in_two_out
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import one_line
from upwell.edge.runtimes.tflite.runtime import TfliteRuntime
from upwell.edge.runtimes.tflite.tflite_package import find_package
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.tensors import TensorSpec


@pytest.fixture(params=TFLITE_PACKAGES)
def options(request: pytest.FixtureRequest) -> RuntimeOptions:
    return RuntimeOptions(package=request.param)


def test_names_come_from_the_only_signature(options: RuntimeOptions, tmp_path: Path) -> None:
    tensors = [T(name, (1, 3)) for name in ("serving_default_b:0", "serving_default_a:0", "StatefulCall:0")]
    path = save(tmp_path / "m.tflite", tensors, [add(0, 1, 2)], [0, 1], [2], ({"a": 1, "b": 0}, {"output_0": 2}))
    runtime = TfliteRuntime(path, options)
    assert [spec.name for spec in runtime.inputs] == ["b", "a"]
    assert [spec.name for spec in runtime.outputs] == ["output_0"]
    answer = runtime.run({"a": np.ones((1, 3), np.float32), "b": np.zeros((1, 3), np.float32)})
    np.testing.assert_array_equal(answer["output_0"], [[1, 1, 1]])


def test_an_output_with_two_names_is_given_twice(options: RuntimeOptions, tmp_path: Path) -> None:
    tensors = [T(name, (1,)) for name in "xyz"]
    path = save(tmp_path / "m.tflite", tensors, [add(0, 0, 1)], [0], [1], ({"x": 0}, {"first": 1, "second": 1}))
    answer = TfliteRuntime(path, options).run({"x": np.ones(1, np.float32)})
    assert list(answer) == ["first", "second"]
    answer["first"][:] = 9
    np.testing.assert_array_equal(answer["second"], [2])


def test_a_signature_that_leaves_something_out_is_not_used(options: RuntimeOptions, tmp_path: Path) -> None:
    tensors = [T(name, (1,)) for name in "xyz"]
    path = save(tmp_path / "m.tflite", tensors, [add(0, 1, 2)], [0, 1], [2], ({"only": 0}, {"out": 2}))
    assert [spec.name for spec in TfliteRuntime(path, options).inputs] == ["x", "y"]


def test_names_that_repeat_or_are_empty_become_unique(options: RuntimeOptions, tmp_path: Path) -> None:
    tensors = [T(name, (1,)) for name in ("x", "x", "x_1", "", "y", "y", "y")]
    operators = [add(0, 1, 4), add(2, 3, 5), add(0, 3, 6)]
    runtime = TfliteRuntime(save(tmp_path / "m.tflite", tensors, operators, [0, 1, 2, 3], [4, 5, 6]), options)
    assert [spec.name for spec in runtime.inputs] == ["x", "x_2", "x_1", "tensor_3"]
    assert [spec.name for spec in runtime.outputs] == ["y", "y_1", "y_2"]
    values = {
        spec.name: np.array([value], np.float32) for spec, value in zip(runtime.inputs, (1, 2, 4, 8), strict=True)
    }
    assert {name: float(array[0]) for name, array in runtime.run(values).items()} == {"y": 3, "y_1": 12, "y_2": 9}


def test_a_fixed_leading_one_stays_one(options: RuntimeOptions, tmp_path: Path) -> None:
    runtime = TfliteRuntime(linear(tmp_path, rows=1), options)
    assert runtime.inputs == (TensorSpec("x", "FP32", (1, 8)),)
    with pytest.raises(InvalidRequest, match=r"'x' FP32 \[1, 8\] expected, got float32 \[2, 8\]"):
        runtime.run({"x": np.zeros((2, 8), np.float32)})
    assert runtime.run({"x": np.zeros((1, 8), np.float32)})["scores"].shape == (1, 3)


def test_shapes_that_do_not_fit_each_other_are_shown(options: RuntimeOptions, tmp_path: Path) -> None:
    runtime = TfliteRuntime(two_in_two_out(tmp_path), options)
    with pytest.raises(InvalidRequest, match=r"'a' \[2, 3\], 'b' \[5, 3\]"):
        runtime.run({"a": np.zeros((2, 3), np.float32), "b": np.zeros((5, 3), np.float32)})


def test_a_model_is_reopened_after_a_failure_even_if_its_file_vanished(options: RuntimeOptions, tmp_path: Path) -> None:
    path = two_in_two_out(tmp_path)
    runtime = TfliteRuntime(path, options)
    good = {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)}
    with pytest.raises(InvalidRequest):
        runtime.run({**good, "b": np.ones((5, 3), np.float32)})
    path.unlink()
    np.testing.assert_array_equal(runtime.run(good)["sum"], np.full((2, 3), 2))


def test_a_running_model_does_not_see_what_is_written_over_its_file(options: RuntimeOptions, tmp_path: Path) -> None:
    """As when a new model is copied over it. A mapping of the file would change the answers, or end the process."""
    path = _embedding(tmp_path, 1.0)
    runtime = TfliteRuntime(path, options)
    _embedding(tmp_path, 7.0)
    np.testing.assert_array_equal(runtime.run({"rows": np.array([0, 999], np.int32)})["y"], np.ones((2, 16)))


def _embedding(folder: Path, value: float) -> Path:
    """Rows of a table, which are read from the model file's content in every run."""
    tensors = [
        T("rows", (2,), "INT32"),
        T("table", (1000, 16), data=np.full((1000, 16), value, np.float32)),
        T("y", (2, 16)),
    ]
    options = (schema.BuiltinOptions.GatherOptions, schema.GatherOptionsT())
    return save(folder / "m.tflite", tensors, [Op(schema.BuiltinOperator.GATHER, (1, 0), (2,), *options)], [0], [2])


def test_quantized_tensors_pass_as_they_are(options: RuntimeOptions, tmp_path: Path) -> None:
    tensors = [T("x", (1, 2), "INT8", None, (0.5, -3)), T("y", (1, 2), "INT8", None, (1.0, 0))]
    path = save(tmp_path / "m.tflite", tensors, [add(0, 0, 1)], [0], [1])
    runtime = TfliteRuntime(path, options)
    assert runtime.inputs == (TensorSpec("x", "INT8", (1, 2)),)
    assert runtime.quantization == {"x": (0.5, -3), "y": (1.0, 0)}
    stored = np.array([[7, -3]], np.int8)  # 5.0 and 0.0
    np.testing.assert_array_equal(runtime.run({"x": stored})["y"], [[10, 0]])


def test_plain_tensors_have_no_quantization(options: RuntimeOptions, tmp_path: Path) -> None:
    assert TfliteRuntime(linear(tmp_path), options).quantization == {}


def test_custom_operators_are_named(options: RuntimeOptions, tmp_path: Path) -> None:
    tensors = [T("x", (1,)), T("y", (1,))]
    path = save(tmp_path / "m.tflite", tensors, [Op("Frobnicate", (0,), (1,))], [0], [1])
    with pytest.raises(ConfigError, match="Frobnicate"):
        TfliteRuntime(path, options)


def test_datatypes_that_oip_does_not_have_are_refused(options: RuntimeOptions, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="complex64"):
        TfliteRuntime(identity(tmp_path, "COMPLEX64"), options)


def test_the_maintained_package_is_preferred(tmp_path: Path) -> None:
    assert TfliteRuntime(linear(tmp_path)).version.startswith("ai-edge-litert ")


def forget(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make packages look as if they were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("forced", "said"),
    [
        (None, "a TFLite runtime is not installed: pip install 'upwell[litert]'"),
        ("ai_edge_litert", "ai_edge_litert is not installed: pip install 'upwell[litert]'"),
        ("tflite_runtime", "tflite_runtime is not installed: pip install 'upwell[tflite]'"),
    ],
)
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, forced: Any, said: str) -> None:
    forget(monkeypatch, "ai_edge_litert", "tflite_runtime")
    with pytest.raises(ConfigError) as error:
        find_package(forced)
    assert str(error.value) == said


@pytest.mark.tflite_runtime
def test_the_other_package_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, "ai_edge_litert")
    assert find_package().version.startswith("tflite-runtime ")


@pytest.mark.tflite_runtime
def test_numpy_2_is_named_where_it_breaks_tflite_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "2.1.0")
    with pytest.raises(
        ConfigError, match=r"needs numpy below 2, but 2\.1\.0 is installed: pip install 'upwell\[tflite\]'"
    ):
        find_package("tflite_runtime")


def test_a_package_that_cannot_be_imported_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "ai_edge_litert"
    broken.mkdir()
    (broken / "__init__.py").write_text("import a_library_it_needs")
    forget(monkeypatch, "ai_edge_litert")
    monkeypatch.delitem(sys.modules, "ai_edge_litert")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"ai_edge_litert is installed but cannot be imported: .*a_library_it_needs"):
        find_package("ai_edge_litert")


def test_an_error_without_words_is_named() -> None:
    """As that of LiteRT for a tensor that does not fit into memory."""
    assert one_line(MemoryError()) == "MemoryError"
    assert one_line(ValueError("two\nlines")) == "two lines"
