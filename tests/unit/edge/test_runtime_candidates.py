"""In which order the ways to run a model are tried, and what a person's word leaves of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upwell.edge.bundle.bundle import Bundle
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.models.runtime_candidates import accelerated, files_of, on_cpu
from upwell.shared.errors import ConfigError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for name in ("model.onnx", "model.tflite"):
        (tmp_path / name).write_bytes(b"model")
    return tmp_path


def library(folder: Path, *exports: str) -> str:
    path = folder / f"{'-'.join(exports) or 'plain'}.so"
    path.write_bytes(b"\x7fELF" + "\0".join(exports).encode())
    return str(path)


DELEGATE, PLUGIN = "tflite_plugin_create_delegate", "CreateEpFactories"


def tried(bundle: Path, *accelerators: dict[str, Any], **how: Any) -> list[str]:
    side = EdgeSide.model_validate({"bundle": str(bundle), "accelerator": list(accelerators), **how})
    models = files_of(side, None).models
    return [str(one) for one in [*accelerated(side, models), *on_cpu(side, models)]]


CPU = ["onnx on the CPU", "tflite (ai_edge_litert) on the CPU", "tflite (tflite_runtime) on the CPU"]


@pytest.mark.tflite_runtime
def test_the_cpu_comes_last_file_by_file_and_package_by_package(bundle: Path) -> None:
    assert tried(bundle) == CPU
    assert tried(bundle, {"provider": "qnn"}, {"provider": "openvino", "require": "cpu"}) == ["onnx on qnn", *CPU]


@pytest.mark.tflite_runtime
@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({"runtime": "onnx"}, CPU[:1]),
        ({"runtime": "tflite"}, CPU[1:]),
        ({"package": "tflite_runtime"}, CPU[2:]),
        ({"runtime": "tflite", "package": "ai_edge_litert"}, CPU[1:2]),
    ],
)
def test_what_is_written_narrows(bundle: Path, how: dict[str, Any], left: list[str]) -> None:
    assert tried(bundle, **how) == left


@pytest.mark.tflite_runtime
def test_a_file_stands_alone(bundle: Path) -> None:
    for name, left in (("model.onnx", CPU[:1]), ("model.tflite", CPU[1:])):
        side = EdgeSide.model_validate({"file": str(bundle / name)})
        assert [str(one) for one in on_cpu(side, files_of(side, None).models)] == left


@pytest.mark.tflite_runtime
@pytest.mark.parametrize(
    ("exports", "runtimes"),
    [((DELEGATE,), "tt"), ((PLUGIN,), "o"), ((DELEGATE, PLUGIN), "ott"), ((), "ott")],
)
def test_a_library_goes_to_the_runtime_that_can_load_it(
    bundle: Path, tmp_path: Path, exports: tuple[str, ...], runtimes: str
) -> None:
    found = tried(bundle, {"provider": "x", "library": library(tmp_path, *exports)})
    assert "".join(one[0] for one in found if one.endswith("on x")) == runtimes


@pytest.mark.tflite_runtime
@pytest.mark.parametrize(
    ("provider", "runtimes"), [("qnn", "o"), ("cuda", "o"), ("litert_npu", "tt"), ("xnnpack", "ott")]
)
def test_what_needs_no_library_goes_by_its_name(bundle: Path, provider: str, runtimes: str) -> None:
    found = tried(bundle, {"provider": provider})
    assert "".join(one[0] for one in found if one.endswith(f"on {provider}")) == runtimes


def test_what_suits_no_file_is_left_to_the_runtime_to_refuse(bundle: Path) -> None:
    assert tried(bundle, {"provider": "qnn"}, package="ai_edge_litert")[0] == "tflite (ai_edge_litert) on qnn"


def test_accelerators_are_tried_in_the_order_that_is_written(bundle: Path) -> None:
    found = tried(bundle, {"provider": "b"}, {"provider": "a"}, runtime="onnx")
    assert found == ["onnx on b", "onnx on a", "onnx on the CPU"]


def test_a_bundle_that_was_verified_goes_before_the_folder_in_the_file(bundle: Path, tmp_path: Path) -> None:
    side = EdgeSide.model_validate({"bundle": str(tmp_path / "nowhere")})
    files = files_of(side, Bundle(bundle))
    assert ([path.name for path in files.models], files.bundle) == (["model.onnx", "model.tflite"], Bundle(bundle))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"bundle": "nowhere"}, "nowhere: bundle: no such folder; expected a folder with model.onnx or model.tflite"),
        ({"bundle": "."}, "bundle: no model.onnx or model.tflite in it"),
        ({"bundle": ".", "runtime": "onnx"}, "bundle: no model.onnx in it"),
        ({"bundle": ".", "package": "tflite_runtime"}, "bundle: no model.tflite in it"),
        ({"file": "model.bin"}, "expected a .onnx or .tflite file"),
        ({"file": "model.onnx"}, "no such file; expected a model"),
        ({"file": "."}, "file: this is a folder; write it as `bundle`, or name the model file in it"),
    ],
)
def test_without_a_model_file_it_says_what_was_expected(tmp_path: Path, how: dict[str, str], said: str) -> None:
    source = {key: str(tmp_path / value) if key in ("bundle", "file") else value for key, value in how.items()}
    with pytest.raises(ConfigError) as error:
        files_of(EdgeSide.model_validate(source), None)
    assert said in str(error.value)
