"""Choosing a runtime, its options, and what is imported when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit import models_for_tests as onnx_models
from tests.unit import tflite_for_tests as tflite_models
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import coverage_of, load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.platform.cpu_cores import usable_cores


def test_the_suffix_decides(tmp_path: Path) -> None:
    assert load_runtime(onnx_models.linear(tmp_path)).name == "onnx"
    assert load_runtime(tflite_models.linear(tmp_path)).name == "tflite"


def test_what_is_written_decides_before_the_suffix(tmp_path: Path) -> None:
    model = tflite_models.linear(tmp_path).rename(tmp_path / "model.onnx")
    assert load_runtime(model, RuntimeOptions(runtime="tflite")).name == "tflite"


@pytest.mark.parametrize("name", ["model.bin", "model", ".onnx"])
def test_an_unknown_suffix_asks_for_the_runtime(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="write `runtime: onnx` or `tflite`"):
        load_runtime(tmp_path / name)


def test_a_missing_onnxruntime_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("upwell.edge.runtimes.onnx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "upwell.edge.runtimes.onnxruntime_import", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'upwell\[onnx\]'"):
        load_runtime(onnx_models.linear(tmp_path))


def test_coverage_names_the_extra_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("upwell.edge.runtimes.onnx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "upwell.edge.runtimes.onnxruntime_import", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'upwell\[onnx\]'"):
        coverage_of(onnx_models.linear(tmp_path), RuntimeOptions(), AcceleratorOptions(provider="qnn"))


def test_no_runtime_is_imported_before_one_is_needed() -> None:
    code = (
        "import sys, upwell.edge.runtimes.runtime_loader, upwell.edge.runtimes.fake\n"
        "print([name for name in ('onnxruntime', 'ai_edge_litert', 'tflite_runtime', 'torch') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"runtime": "torch"},
        {"threads": 0},
        {"thread": 1},
        {"package": "tensorflow"},
        {"runtime": "onnx", "package": "tflite_runtime"},
        {"accelerator": {}},
        {"accelerator": {"provider": ""}},
        {"accelerator": {"provider": "qnn", "require": "maybe"}},
        {"accelerator": {"provider": "qnn", "options": {"list": [1]}}},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RuntimeOptions.model_validate(wrong)


def test_threads_default_to_four_at_most() -> None:
    assert 1 <= RuntimeOptions().thread_count <= 4
    assert RuntimeOptions(threads=7).thread_count == 7


def test_accelerator_options_pass_as_text() -> None:
    options = AcceleratorOptions(provider="qnn", options={"a": 1, "b": True, "c": 0.5, "d": "x"})
    assert options.option_texts() == {"a": "1", "b": "True", "c": "0.5", "d": "x"}


@pytest.mark.parametrize(
    ("written", "library"),
    [
        ("libedgetpu.so.1", "libedgetpu.so.1"),
        ("./libnpu.so", "/etc/upwell/libnpu.so"),
        ("vendor/libnpu.so", "/etc/upwell/vendor/libnpu.so"),
        ("/opt/libnpu.so", "/opt/libnpu.so"),
    ],
)
def test_a_library_is_a_path_from_the_file_or_a_bare_name(written: str, library: str) -> None:
    text = f"accelerator: {{provider: npu, library: {written}}}"
    (accelerator,) = parse_yaml(text, RuntimeOptions, Path("/etc/upwell/agent.yaml")).accelerator
    assert accelerator.library == Path(library)


def test_the_accelerator_to_load_on_is_the_one_that_is_given(tmp_path: Path) -> None:
    model = tflite_models.linear(tmp_path)
    missing = AcceleratorOptions(provider="npu", library=Path("/nowhere/libnpu.so"))
    assert load_runtime(model, RuntimeOptions(accelerator=missing)).placement.accelerator == ""
    with pytest.raises(AcceleratorNotUsable, match=r"/nowhere/libnpu\.so"):
        load_runtime(model, RuntimeOptions(), missing)


def test_litert_npu_is_a_way_of_its_own(tmp_path: Path) -> None:
    wanted = AcceleratorOptions(provider="litert_npu", options={"vendor": "acme"})
    with pytest.raises(AcceleratorNotUsable, match=r"expected vendor to be one of .*intel_openvino.*, got 'acme'"):
        load_runtime(tflite_models.linear(tmp_path), RuntimeOptions(), wanted)


def test_instances_default_to_what_fits_the_cores_where_threads_are_written() -> None:
    assert RuntimeOptions().instance_count == 1
    assert RuntimeOptions(threads=1).instance_count == usable_cores()
    assert RuntimeOptions(threads=1000).instance_count == 1
    assert RuntimeOptions(threads=1, instances=3).instance_count == 3


@pytest.mark.parametrize("written", ["''", "7", "[a]"])
def test_a_library_that_is_no_path_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="expected a path"):
        parse_yaml(f"accelerator: {{provider: npu, library: {written}}}", RuntimeOptions)
