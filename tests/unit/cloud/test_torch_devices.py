"""Devices of torch: by name, with the package that each takes, and never one that nobody named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from upwell.cloud.engines.torch.torch_engine import PACKAGES, lacks_unit, open_device, warn_of_slow_precision
from upwell.shared.errors import ModelFailed


@pytest.mark.parametrize(
    ("device", "module", "how"),
    [
        ("npu:0", "torch_npu", "pip install torch-npu"),
        ("hpu", "habana_frameworks.torch.core", "Intel Gaudi's PyTorch image"),
        ("tpu", "torch_tpu", "pip install torch-tpu"),
        ("neuron", "torch_neuronx", "install torch-neuronx"),
    ],
)
def test_a_device_of_a_missing_package_names_the_package(device: str, module: str, how: str) -> None:
    with pytest.raises(ModelFailed, match=rf"device '{device}' needs the package {module}, .* not installed: .*{how}"):
        open_device(device)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
@pytest.mark.parametrize(
    ("device", "hint"),
    [("cuda", "a torch built for CUDA or ROCm"), ("xpu", "Intel GPUs"), ("mps", "Apple silicon"), ("nonsense", "")],
)
def test_a_device_that_torch_cannot_reach_says_what_it_takes(device: str, hint: str) -> None:
    with pytest.raises(ModelFailed, match=rf"device '{device}' is not usable: .*{hint}"):
        open_device(device)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise OSError('libascendcl.so: cannot open')", "importing torch_npu failed: libascendcl.so: cannot open"),
        ("import no_such_part_of_it", "importing torch_npu failed: No module named 'no_such_part_of_it'"),
    ],
)
def test_a_package_that_fails_says_so_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    (tmp_path / "torch_npu.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelFailed, match=says):
        open_device("npu")


def test_packages_are_imported_for_their_own_device_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES.values():
        (tmp_path / f"{package.module.partition('.')[0]}.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_device("cpu") == torch.device("cpu")
    open_device("auto")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_without_an_accelerator_auto_is_the_cpu_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert open_device("auto") == torch.device("cpu")
    assert "torch finds no accelerator and runs on the CPU" in caplog.text


@pytest.mark.parametrize(
    ("precision", "abilities", "lacks"),
    [
        ("bf16", {"avx2": True, "amx_bf16": False}, True),
        ("bf16", {"amx_bf16": True}, False),
        ("bf16", {"neon": True, "bf16": True}, False),
        ("fp16", {"amx_bf16": True, "avx512_fp16": False}, True),
        ("fp16", {"avx512_fp16": True}, False),
        ("fp32", {"avx2": True}, False),
        ("bf16", {}, False),
    ],
)
def test_a_cpu_without_a_unit_for_it_is_known(precision: str, abilities: dict[str, bool], lacks: bool) -> None:
    assert lacks_unit(precision, abilities) is lacks


def test_a_slow_precision_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    warn_of_slow_precision("photos", "bf16", torch.device("cpu"))
    assert "model photos: on this CPU, which does not support it, bf16 is slower than fp32" in caplog.text
    caplog.clear()
    warn_of_slow_precision("photos", None, torch.device("cpu"))
    warn_of_slow_precision("photos", "bf16", torch.device("meta"))
    assert not caplog.records


@pytest.mark.parametrize(
    "first",
    [
        "upwell.cloud.service.model_loader",
        pytest.param("upwell.cloud.engines.torch.torch_engine", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.slow
def test_a_broken_plugin_of_another_accelerator_does_not_break_the_service(tmp_path: Path, first: str) -> None:
    """Whoever imports torch in the service: the variable that keeps plugins away is set before."""
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no driver')")
    info = tmp_path / "broken_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nbroken = broken_plugin:load\n")
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    environment["PYTHONPATH"] = str(tmp_path)

    def imports(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", f"import {first}, torch"]
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=False)

    assert imports().returncode == 0
    if first.endswith("torch"):  # and with it set otherwise the plugin is loaded, so this test would see it
        assert "no driver" in imports(TORCH_DEVICE_BACKEND_AUTOLOAD="1").stderr
