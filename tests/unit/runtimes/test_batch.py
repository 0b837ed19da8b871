"""A model that was exported with an open batch, run with a fixed one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.unit import models_for_tests, tflite_for_tests
from tests.unit.models_for_tests import save, tensor
from tests.unit.tflite_for_tests import TFLITE_PACKAGES
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.models.model_loader import Loader
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.onnx.sessions import hint
from upwell.edge.runtimes.probe_process import ProbeSubject
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.formats.onnx.graph import read_graph


def shapes(runtime: Runtime) -> list[tuple[int, ...]]:
    return [spec.shape for spec in (*runtime.inputs, *runtime.outputs)]


def rows(count: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"x": np.random.default_rng(0).standard_normal((count, 8), np.float32)}


def fixed_answers_like_open(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions | None = None) -> None:
    """With `batch: 3` the model says so, answers the same, and takes no other number of rows."""
    opened = load_runtime(path, options)
    fixed = load_runtime(path, options.model_copy(update={"batch": 3}), accelerator)
    assert [shape[0] for shape in shapes(opened)] == [-1, -1]
    assert shapes(fixed) == [(3, 8), (3, 3)]
    np.testing.assert_allclose(fixed.run(rows(3))["scores"], opened.run(rows(3))["scores"], rtol=1e-6)
    with pytest.raises(InvalidRequest, match=r"'x' FP32 \[3, 8\] expected, got float32 \[1, 8\]"):
        fixed.run(rows(1))
    assert fixed.run(rows(3))["scores"].shape == (3, 3)
    if accelerator is not None:
        assert fixed.placement.nodes_on_accelerator == fixed.placement.nodes > 0
        assert fixed.placement.reason == ""


def test_onnx_on_the_cpu(tmp_path: Path) -> None:
    fixed_answers_like_open(models_for_tests.linear(tmp_path), RuntimeOptions())


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_tflite_on_the_cpu_and_on_delegates(tmp_path: Path, package: str, software_delegate: Path) -> None:
    options = RuntimeOptions.model_validate({"package": package})
    fixed_answers_like_open(tflite_for_tests.linear(tmp_path), options)
    fixed_answers_like_open(tflite_for_tests.linear(tmp_path), options, AcceleratorOptions(provider="xnnpack"))
    for extra in ({}, {"static_only": 1}):
        delegate = AcceleratorOptions(
            provider="software", require="must", library=software_delegate, options={"claim": "all", **extra}
        )
        fixed_answers_like_open(tflite_for_tests.linear(tmp_path), options, delegate)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_a_delegate_keeps_its_nodes_whatever_the_rows(tmp_path: Path, package: str, software_delegate: Path) -> None:
    report = tmp_path / "report"
    delegate = {"claim": "all", "static_only": 1, "report": str(report)}
    described = {
        "file": str(tflite_for_tests.linear(tmp_path)), "package": package, "batch": 2,
        "accelerator": {"provider": "software", "library": str(software_delegate), "options": delegate},
    }  # fmt: skip
    edge = Loader("m", EdgeSide.model_validate(described)).load()
    prepared = report.read_text()
    for count in (1, 2, 5):
        assert edge.run_now(rows(count)).outputs["scores"].shape == (count, 3)
    assert (edge.accelerator, report.read_text()) == ("software", prepared)  # nothing was partitioned anew
    edge.close()


@pytest.mark.parametrize("maker", [models_for_tests.linear, tflite_for_tests.linear])
@pytest.mark.parametrize("batch", [1, 4])
def test_any_number_of_rows_is_answered(tmp_path: Path, maker: object, batch: int) -> None:
    assert callable(maker)
    path = maker(tmp_path)
    plain = Loader("m", EdgeSide.model_validate({"file": str(path)})).load()
    fixed = Loader("m", EdgeSide.model_validate({"file": str(path), "batch": batch})).load()
    assert fixed.signature == plain.signature
    for count in (1, 4, 10):
        expected = plain.run_now(rows(count)).outputs["scores"]
        np.testing.assert_allclose(fixed.run_now(rows(count)).outputs["scores"], expected, rtol=1e-5)


@pytest.mark.parametrize("maker", [models_for_tests.linear, tflite_for_tests.linear])
def test_a_batch_that_is_fixed_already(tmp_path: Path, maker: object) -> None:
    assert callable(maker)
    path = maker(tmp_path, rows=2)
    assert shapes(load_runtime(path, RuntimeOptions(batch=2))) == [(2, 8), (2, 3)]
    with pytest.raises(
        ConfigError, match=r"`batch: 1` cannot be used: the model has no open batch dimension.*x.* \[2, 8\]"
    ):
        load_runtime(path, RuntimeOptions(batch=1))


def copied(path: Path, shape: list[int | str | None]) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    return save(path, nodes, [tensor("x", shape)], [tensor("y", shape)])


def test_a_dimension_without_a_name_cannot_be_fixed(tmp_path: Path) -> None:
    path = copied(tmp_path / "m.onnx", [None, 3])
    with pytest.raises(
        ConfigError, match=r"the first dimension of input 'x' is open but has no name; fix it in the file .*"
    ):
        load_runtime(path, RuntimeOptions(batch=1))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1  # as some exporters write it
    path.write_bytes(model.SerializeToString())
    assert read_graph(path).inputs == {"x": ("", 3)}
    assert read_graph(path).shapes["x"] == (-1, 3)


def test_a_name_of_other_dimensions_is_left_alone(tmp_path: Path) -> None:
    path = copied(tmp_path / "m.onnx", ["n", "n"])
    with pytest.raises(ConfigError, match="'n', the first dimension of input 'x', also names other dimensions"):
        load_runtime(path, RuntimeOptions(batch=1))


def test_each_input_leads_with_the_batch_whatever_its_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["a", "b"], ["y"], name="mul")]
    inputs = [tensor("a", ["rows_of_a", 3]), tensor("b", ["rows_of_b", 1])]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [*inputs, tensor("c", [3])],
        [tensor("y", ["rows", 3])],
        {"c": np.ones(3, np.float32)},
    )
    assert shapes(load_runtime(path, RuntimeOptions(batch=2))) == [(2, 3), (2, 1), (2, 3)]


def test_the_hint_names_the_open_inputs(tmp_path: Path) -> None:
    assert hint(models_for_tests.linear(tmp_path)).startswith("; the batch of 'x' is open")
    assert "write `batch: 1`" in hint(models_for_tests.linear(tmp_path))
    assert hint(models_for_tests.linear(tmp_path, rows=1)) == ""
    assert hint(tmp_path / "missing.onnx") == ""


def test_what_was_tried_out_with_another_batch_is_tried_out_anew(tmp_path: Path, software_delegate: Path) -> None:
    wanted = AcceleratorOptions(provider="software", library=software_delegate)
    subject = ProbeSubject(tflite_for_tests.linear(tmp_path), RuntimeOptions(), wanted, "1")
    assert replace(subject, options=RuntimeOptions(batch=1)).key() != subject.key()
    assert replace(subject, options=RuntimeOptions(threads=1)).key() == subject.key()
