"""Options of LiteRT's way to an NPU: what is handed through, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.npu_runtime import CompiledRuntime, npu_options
from upwell.shared.errors import ConfigError
from upwell.tools.demo.digit_data import ASSETS


def npu(**options: Any) -> AcceleratorOptions:
    return AcceleratorOptions(provider="litert_npu", options=options)


def test_the_npu_is_asked_for_alone() -> None:
    options, _ = npu_options(npu(vendor="intel_openvino"))
    assert options.hardware_accelerators.name == "NPU"


def test_options_go_to_the_vendor_by_their_type() -> None:
    intel, _ = npu_options(
        npu(vendor="intel_openvino", graph_backend="cpu", **{"configs_map.INFERENCE_PRECISION_HINT": "f32"})
    )
    assert intel.intel_openvino_options.graph_backend.name == "CPU"
    assert intel.intel_openvino_options.configs_map == {"INFERENCE_PRECISION_HINT": "f32"}
    given = npu(vendor="qualcomm", backend="HTP", use_conv_hmx=True, vtcm_size=4, dump_tensor_ids="1,2", dlc_dir="/d")
    qualcomm = npu_options(given)[0].qualcomm_options
    assert (qualcomm.backend.name, qualcomm.use_conv_hmx, qualcomm.vtcm_size) == ("HTP", True, 4)
    assert (list(qualcomm.dump_tensor_ids), qualcomm.dlc_dir) == ([1, 2], "/d")


def test_libraries_are_those_of_the_vendor_and_of_no_other(tmp_path: Path) -> None:
    _, environment = npu_options(npu(vendor="mediatek"))
    assert Path(environment.options.compiler_plugin_path).parts[-2:] == ("mediatek", "compiler")
    assert Path(environment.options.dispatch_library_path).parts[-2:] == ("mediatek", "dispatch")
    _, environment = npu_options(npu(vendor="qualcomm", dispatch_library_path=str(tmp_path)))
    assert environment.options.dispatch_library_path == str(tmp_path)
    assert Path(environment.options.compiler_plugin_path).parts[-2:] == ("qualcomm", "compiler")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vendor": "acme"}, "expected vendor to be one of .*intel_openvino.*, got 'acme'"),
        ({"graph_backend": "CPU"}, "`vendor` must be set .*graph_backend"),
        ({"vendor": "mediatek", "x": 1}, "'mediatek' has no options here: x; .*intel_openvino, qualcomm"),
        ({"vendor": "intel_openvino", "nonsense": 1}, "unknown option 'nonsense'.*graph_backend"),
        ({"vendor": "intel_openvino", "graph_backend": "TPU"}, "'graph_backend' must be CPU, GPU, NPU, got 'TPU'"),
        ({"vendor": "intel_openvino", "configs_map": "x"}, "`configs_map.KEY` is only for an option that is a map"),
        (
            {"vendor": "intel_openvino", "graph_backend.x": "CPU"},
            "`graph_backend.KEY` is only for an option that is a map",
        ),
        ({"vendor": "qualcomm", "vtcm_size": "large"}, "'vtcm_size' must be a number, got 'large'"),
        ({"vendor": "qualcomm", "use_conv_hmx": "maybe"}, "'use_conv_hmx' must be true or false"),
        ({"vendor": "qualcomm", "dump_tensor_ids": "a"}, "'dump_tensor_ids' must be numbers separated by commas"),
    ],
)
def test_what_litert_does_not_have_is_a_reason(options: dict[str, Any], said: str) -> None:
    with pytest.raises(AcceleratorNotUsable, match=said):
        npu_options(npu(**options))


@pytest.mark.parametrize(
    ("vendor", "said"),
    [
        ("mediatek", "there is no dispatch library in .*mediatek|plugin cannot be loaded"),
        ("qualcomm", "the compiler plugin cannot be loaded: .*lib"),
    ],
)
def test_libraries_that_are_missing_are_named(vendor: str, said: str) -> None:
    digits = ASSETS / "edge" / "digits" / "model.tflite"
    with pytest.raises(AcceleratorNotUsable, match=f"litert_npu did not compile the model: .*({said})"):
        CompiledRuntime(digits, RuntimeOptions(), npu(vendor=vendor))


def test_the_other_package_has_no_way_to_npus(tmp_path: Path) -> None:
    with pytest.raises(AcceleratorNotUsable, match="only ai_edge_litert"):
        CompiledRuntime(tmp_path / "m.tflite", RuntimeOptions(package="tflite_runtime"), npu())


def test_a_broken_model_is_no_matter_of_the_accelerator(tmp_path: Path) -> None:
    broken = tmp_path / "m.tflite"
    broken.write_bytes(b"no model")
    with pytest.raises(ConfigError, match="cannot run the model"):
        CompiledRuntime(broken, RuntimeOptions(), npu(vendor="intel_openvino"))
