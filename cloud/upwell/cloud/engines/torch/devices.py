"""The devices of torch: built-in ones, and those added by importing a vendor's package."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from upwell.cloud.engines.error_text import reason_of
from upwell.shared.errors import ModelFailed

AUTOMATIC = "auto"
"""The value of `device` for the accelerator that torch finds, or the CPU if there is none."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DevicePackage:
    """A package that adds a kind of device to torch: the module to import, and how to install it."""

    module: str
    install: str


PACKAGES: Mapping[str, DevicePackage] = MappingProxyType(
    {
        "hpu": DevicePackage("habana_frameworks.torch.core", "use Intel Gaudi's PyTorch image, which includes it"),
        "neuron": DevicePackage("torch_neuronx", "install torch-neuronx of torch's version from AWS Neuron's index"),
        "npu": DevicePackage("torch_npu", "pip install torch-npu, of torch's version, beside Huawei's CANN"),
        "tpu": DevicePackage("torch_tpu", "pip install torch-tpu"),
    }
)
"""Packages by device name. Each is imported only for a model on that device, since a broken one would break all of
torch."""

_BUILDS: Mapping[str, str] = MappingProxyType(
    {
        "cuda": "it needs a torch built for CUDA or ROCm, its driver and a device",
        "xpu": "it needs torch's build for Intel GPUs, its driver and a device",
        "mps": "it needs torch on a Mac with Apple silicon",
    }
)

_UNITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bf16": ("amx_bf16", "bf16", "sve_bf16"), "fp16": ("amx_fp16", "avx512_fp16", "fp16_arith")}
)
"""CPU features for half-precision multiplication, on x86-64 and ARM. On an x86-64 CPU with only AVX2 a ResNet-18 took
6.6 times as long in bf16 as in fp32."""


def open_device(text: str) -> torch.device:
    """Open the device named `text` (`cpu`, `cuda:1`, `npu`, ...; `auto`: the accelerator if there is one, else the
    CPU).

    Raises `ModelFailed` with the remedy if its package is missing or this torch cannot use it.
    """
    if text == AUTOMATIC:
        return _automatic()
    kind, _, number = text.partition(":")
    if kind == "cpu" and number not in ("", "0"):
        raise ModelFailed(f"there is no device {text!r}: torch has one CPU; write `cpu`")
    if kind in PACKAGES:
        _import(text, PACKAGES[kind])
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except Exception as error:  # a missing backend raises AssertionError, RuntimeError and others
        hint = f"; {_BUILDS[kind]}" if kind in _BUILDS else ""
        raise ModelFailed(f"device {text!r} is not usable: {reason_of(error)}{hint}") from error
    return device


def warn_of_slow_precision(name: str, precision: str | None, device: torch.device) -> None:
    """Warn if half precision makes a model slower, on a CPU without support for it."""
    abilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if device.type == "cpu" and precision is not None and lacks_unit(precision, abilities):
        _log.warning("model %s: on this CPU, which does not support it, %s is slower than fp32", name, precision)


def lacks_unit(precision: str, abilities: Mapping[str, object]) -> bool:
    """Whether a CPU with these `abilities` (from `torch.cpu.get_capabilities`) must emulate `precision`."""
    return bool(abilities) and precision in _UNITS and not any(abilities.get(unit) for unit in _UNITS[precision])


def _import(text: str, package: DevicePackage) -> None:
    try:
        importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        if error.name is None or not package.module.startswith(error.name):
            raise ModelFailed(f"device {text!r}: importing {package.module} failed: {reason_of(error)}") from error
        raise ModelFailed(
            f"device {text!r} needs the package {package.module}, which is not installed: {package.install}"
        ) from None
    except Exception as error:  # a device's package may raise any error, such as for a missing driver
        raise ModelFailed(f"device {text!r}: importing {package.module} failed: {reason_of(error)}") from error


def _automatic() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        names = ", ".join(PACKAGES)
        _log.info("device auto: torch finds no accelerator and runs on the CPU (%s must be named explicitly)", names)
        return torch.device("cpu")
    _log.info("device auto: torch runs on %s", found)
    return found
