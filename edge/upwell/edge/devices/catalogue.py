"""What could be installed for accelerators that no runtime offers here; docs/accelerators.md has a recipe for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from upwell.edge.devices.rows import Row

_LINUX, _WINDOWS, _MACOS = "linux", "win32", "darwin"
_X86, _ARM = ("x86_64", "amd64"), ("aarch64", "arm64")


@dataclass(frozen=True)
class Recipe:
    """An accelerator, the runtime and the systems and machines that it is for, and how it is installed."""

    accelerator: str
    runtime: str
    how: str
    systems: Sequence[str]
    machines: Sequence[str] = (*_X86, *_ARM)


RECIPES = (
    Recipe("qnn", "onnxruntime", "pip install 'upwell[qnn]' (Qualcomm Hexagon; on x86-64 without a device)",
           (_LINUX, _WINDOWS)),
    Recipe("openvino", "onnxruntime", "pip install 'upwell[openvino]' in an environment of its own: it replaces "
           "onnxruntime (Intel CPU, GPU, NPU)", (_LINUX, _WINDOWS), _X86),
    Recipe("litert_npu", "ai-edge-litert", "pip install 'ai-edge-litert>=2.3' openvino (Intel; others need the "
           "vendor's compiler and dispatch libraries)", (_LINUX, _WINDOWS)),
    Recipe("coreml", "onnxruntime", "pip install 'upwell[onnx]': the wheels for macOS have it", (_MACOS,)),
    Recipe("cuda", "onnxruntime", "pip install onnxruntime-gpu in place of onnxruntime; on a Jetson NVIDIA's own wheel",
           (_LINUX, _WINDOWS)),
    Recipe("tensorrt", "onnxruntime", "onnxruntime-gpu as for cuda, and TensorRT's libraries", (_LINUX, _WINDOWS)),
    Recipe("dml", "onnxruntime", "pip install onnxruntime-directml in place of onnxruntime", (_WINDOWS,)),
    Recipe("vitisai", "onnxruntime", "AMD's Ryzen AI software brings an onnxruntime of its own",
           (_WINDOWS, _LINUX), _X86),
    Recipe("cann", "onnxruntime", "pip install onnxruntime-cann in place of onnxruntime, and Huawei's CANN toolkit",
           (_LINUX,)),
    Recipe("rknpu", "onnxruntime", "an onnxruntime built from source with Rockchip's DDK (RK1808 only)",
           (_LINUX,), _ARM),
    Recipe("edge_tpu", "tflite", "Coral's libedgetpu.so.1, as `library`", (_LINUX,)),
    Recipe("vx", "tflite", "libvx_delegate.so of the board's system, as `library`", (_LINUX,), _ARM),
    Recipe("ethosu", "tflite", "libethosu_delegate.so of the board's system, as `library`", (_LINUX,), _ARM),
    Recipe("armnn", "tflite", "libarmnnDelegate.so of Arm NN, as `library` (Mali, Ethos-N)", (_LINUX,), _ARM),
)  # fmt: skip


def missing(rows: Sequence[Row], libraries: Sequence[str], machine: str, system: str = sys.platform) -> Sequence[Row]:
    """The recipes that this system and machine are for, of which no row speaks and no library is there."""
    offered = {row.accelerator for row in rows}
    return [
        Row(recipe.runtime, recipe.accelerator, "not installed", reason=recipe.how)
        for recipe in RECIPES
        if recipe.accelerator not in offered
        and system in recipe.systems
        and machine.lower() in recipe.machines
        and not any(library in recipe.how for library in libraries)
    ]


def missing_packages(installed: Sequence[str]) -> Sequence[Row]:
    """The runtimes that are not installed at all, and the extras that bring them."""
    extras = {"onnxruntime": "onnx", "ai_edge_litert": "litert", "tflite_runtime": "tflite"}
    return [
        Row(package.replace("_", "-"), "", "not installed", reason=f"pip install 'upwell[{extra}]'")
        for package, extra in extras.items()
        if package not in installed
    ]
