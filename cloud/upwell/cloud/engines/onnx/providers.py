"""Which execution providers of ONNX Runtime a model is to run on, and in which order they are tried; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from upwell.shared.errors import ModelFailed

AUTOMATIC = "auto"
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
_SUFFIX = "ExecutionProvider"

INSTALL: Mapping[str, str] = MappingProxyType(
    {
        "TensorrtExecutionProvider": "pip install onnxruntime-gpu (in place of onnxruntime), and NVIDIA's TensorRT",
        "MIGraphXExecutionProvider": "install AMD's onnxruntime-migraphx (in place of onnxruntime), and ROCm",
        CUDA: "pip install 'onnxruntime-gpu[cuda,cudnn]' (in place of onnxruntime), and the driver",
        "CANNExecutionProvider": "pip install onnxruntime-cann (in place of onnxruntime), and Huawei's CANN",
        OPENVINO: "pip install onnxruntime-openvino (in place of onnxruntime)",
        "CoreMLExecutionProvider": "it needs onnxruntime on a Mac",
        CPU: "pip install onnxruntime",
    }
)
"""Providers in the order in which `auto` tries them, and what each takes."""

_OF_DEVICE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cuda": ("TensorrtExecutionProvider", "MIGraphXExecutionProvider", CUDA),
        "npu": ("CANNExecutionProvider",),
        "xpu": (OPENVINO,),
        "mps": ("CoreMLExecutionProvider",),
        "cpu": (CPU,),
    }
)
_BESIDE: Mapping[str, str] = MappingProxyType({"TensorrtExecutionProvider": CUDA})
"""What takes the nodes that a provider leaves, before the CPU does."""


@dataclass(frozen=True)
class WantedProvider:
    """Providers by their full names: all of them at once, or with `first` the first of them that works."""

    names: tuple[str, ...]
    first: bool


@dataclass(frozen=True)
class Choice:
    """Lists of providers to try one after the other until one of them works, and why the others were not taken."""

    chains: tuple[tuple[str, ...], ...]
    skipped: Mapping[str, str]


def wanted_providers(device: str, providers: Sequence[str]) -> WantedProvider:
    """What the settings `device` and `providers` ask for; `providers` counts where both are there.

    Raises `ModelFailed` for a device that no provider of this list serves, and where the two contradict each other.
    """
    if tuple(providers) == (AUTOMATIC,) or (not providers and device == AUTOMATIC):
        return WantedProvider(tuple(INSTALL), first=True)
    kind, _, number = device.partition(":")
    if providers:
        if AUTOMATIC in providers:
            raise ModelFailed("`providers: [auto]` stands alone: it is the first that works; name all others or none")
        names = tuple(map(full_name, providers))
        if set(names) == {CPU} and kind not in ("cpu", AUTOMATIC):
            raise ModelFailed(f"`providers` name the CPU alone, and `device` is {device!r}; leave one of them out")
        return WantedProvider(names, first=False)
    if kind == "cpu" and number not in ("", "0"):
        raise ModelFailed(f"there is no device {device!r}: ONNX Runtime has one CPU; write `cpu`")
    if kind not in _OF_DEVICE:
        known = ", ".join((AUTOMATIC, *_OF_DEVICE))
        raise ModelFailed(f"engine onnx knows no device {device!r}; expected one of {known}, or name its `providers`")
    return WantedProvider(_OF_DEVICE[kind], first=True)


def choose_providers(available: Sequence[str], wanted: WantedProvider) -> Choice:
    """What to try of `wanted`, where an ONNX Runtime has the providers `available`.

    Raises `ModelFailed` with what to install where one that must be there is not, or none of a choice is.
    """
    spelled = {name.lower(): name for name in available}
    names = [spelled.get(name.lower(), name) for name in wanted.names]
    skipped = {name: f"not in this onnxruntime: {_how(name)}" for name in names if name not in available}
    if wanted.first:
        chains = [_chain(name, available) for name in names if name in available]
        if not chains:
            raise ModelFailed(why_skipped(skipped))
        return Choice(tuple(chains), skipped)
    if skipped:
        raise ModelFailed(f"{why_skipped(skipped)}; it has {', '.join(map(short_name, available))}")
    accelerators = dict.fromkeys(name for name in names if name != CPU)
    return Choice(((*accelerators, CPU),), {})  # before others the CPU would take every node


def why_skipped(skipped: Mapping[str, str]) -> str:
    """Why providers are not used, as one sentence."""
    return "; ".join(f"{short_name(name)} is {reason}" for name, reason in skipped.items())


def full_name(provider: str) -> str:
    """`cuda` or `CUDAExecutionProvider` as ONNX Runtime spells it; a name that is not known here is only completed."""
    key = provider.lower().removesuffix(_SUFFIX.lower())
    return next((name for name in INSTALL if short_name(name) == key), f"{provider.removesuffix(_SUFFIX)}{_SUFFIX}")


def short_name(provider: str) -> str:
    """`cuda` for `CUDAExecutionProvider`."""
    return provider.removesuffix(_SUFFIX).lower()


def _chain(name: str, available: Sequence[str]) -> tuple[str, ...]:
    beside = _BESIDE.get(name, "")
    return tuple(dict.fromkeys([name, *([beside] if beside in available else []), CPU]))


def _how(name: str) -> str:
    return INSTALL.get(name, "expected the name of a provider that it is built with")
