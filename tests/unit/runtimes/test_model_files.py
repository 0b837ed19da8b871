"""Files that are no model: one clear error with the path, in every runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit import models_for_tests as onnx_models
from tests.unit import tflite_for_tests as tflite_models
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError

ONNX = RuntimeOptions(runtime="onnx")
LITERT = RuntimeOptions(runtime="tflite", package="ai_edge_litert")
TFLITE = RuntimeOptions(runtime="tflite", package="tflite_runtime")


@pytest.fixture(
    params=[ONNX, LITERT, pytest.param(TFLITE, marks=pytest.mark.tflite_runtime)],
    ids=["onnx", "ai_edge_litert", "tflite_runtime"],
)
def options(request: pytest.FixtureRequest) -> Any:
    return request.param


def refusal(path: Path, options: RuntimeOptions) -> str:
    with pytest.raises(ConfigError) as error:
        load_runtime(path, options)
    assert [problem.path for problem in error.value.problems] == [path]
    text = str(error.value)
    assert "\n" not in text
    return text


def _good(options: RuntimeOptions, directory: Path) -> Path:
    return onnx_models.linear(directory) if options is ONNX else tflite_models.linear(directory)


def _damage(change: Callable[[bytes], bytes], options: RuntimeOptions, directory: Path) -> Path:
    path = directory / "damaged.bin"
    path.write_bytes(change(_good(options, directory).read_bytes()))
    return path


def test_a_missing_file(options: RuntimeOptions, tmp_path: Path) -> None:
    assert "no such file; expected a model" in refusal(tmp_path / "model.bin", options)


def test_a_directory(options: RuntimeOptions, tmp_path: Path) -> None:
    assert "directory" in refusal(tmp_path, options)


def test_an_empty_file(options: RuntimeOptions, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    assert "empty" in refusal(path, options)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(options: RuntimeOptions, tmp_path: Path) -> None:
    path = _good(options, tmp_path)
    path.chmod(0)
    assert "cannot be read" in refusal(path, options)


@pytest.mark.parametrize("content", [b"x", b"garbage " * 100, b"\0" * 1000, b"PK\x03\x04" + b"\0" * 40])
def test_garbage(options: RuntimeOptions, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    refusal(path, options)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_file_cut_short(options: RuntimeOptions, tmp_path: Path, kept: float) -> None:
    refusal(_damage(lambda data: data[: int(len(data) * kept)], options, tmp_path), options)


def test_a_model_of_the_other_format(options: RuntimeOptions, tmp_path: Path) -> None:
    refusal(_good(LITERT if options is ONNX else ONNX, tmp_path), options)
