"""Choosing the execution providers of ONNX Runtime for a model, and their order; pure."""

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
        "TensorrtExecutionProvider": "pip install onnxruntime-gpu (instead of onnxruntime), and NVIDIA's TensorRT",
        "MIGraphXExecutionProvider": "install AMD's onnxruntime-migraphx (instead of onnxruntime), and ROCm",
        CUDA: "pip install 'onnxruntime-gpu[cuda,cudnn]' (instead of onnxruntime), and the driver",
        "CANNExecutionProvider": "pip install onnxruntime-cann (instead of onnxruntime), and Huawei's CANN",
        OPENVINO: "pip install onnxruntime-openvino (instead of onnxruntime)",
        "CoreMLExecutionProvider": "it needs onnxruntime on a Mac",
        CPU: "pip install onnxruntime",
    }
)
"""Providers in the order in which `auto` tries them, with what each needs."""

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
"""Secondary providers for nodes that a provider leaves, before the CPU."""


@dataclass(frozen=True)
class WantedProvider:
    """Providers by their full names: all of them, or with `first` the first that works."""

    names: tuple[str, ...]
    first: bool


@dataclass(frozen=True)
class Choice:
    """Lists of providers to try in order until one works, and why others were skipped."""

    chains: tuple[tuple[str, ...], ...]
    skipped: Mapping[str, str]


def wanted_providers(device: str, providers: Sequence[str]) -> WantedProvider:
    """The providers requested by the settings `device` and `providers`; `providers` takes precedence.

    Raises `ModelFailed` for a device without a provider, and if the two contradict each other.
    """
    if tuple(providers) == (AUTOMATIC,) or (not providers and device == AUTOMATIC):
        return WantedProvider(tuple(INSTALL), first=True)
    kind, _, number = device.partition(":")
    if providers:
        if AUTOMATIC in providers:
            raise ModelFailed("`providers: [auto]` must stand alone: it means the first that works")
        names = tuple(map(full_name, providers))
        if set(names) == {CPU} and kind not in ("cpu", AUTOMATIC):
            raise ModelFailed(f"`providers` names only the CPU, but `device` is {device!r}; leave one of them out")
        return WantedProvider(names, first=False)
    if kind == "cpu" and number not in ("", "0"):
        raise ModelFailed(f"there is no device {device!r}: ONNX Runtime has one CPU; write `cpu`")
    if kind not in _OF_DEVICE:
        known = ", ".join((AUTOMATIC, *_OF_DEVICE))
        raise ModelFailed(f"engine onnx has no device {device!r}; expected one of {known}, or name its `providers`")
    return WantedProvider(_OF_DEVICE[kind], first=True)


def choose_providers(available: Sequence[str], wanted: WantedProvider) -> Choice:
    """The lists to try for `wanted` with an ONNX Runtime that has the providers `available`.

    Raises `ModelFailed` with what to install if a required provider is missing, or all of a choice.
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
    return Choice(((*accelerators, CPU),), {})  # listed before others, the CPU would take every node


def why_skipped(skipped: Mapping[str, str]) -> str:
    """Why providers are not used, as one sentence."""
    return "; ".join(f"{short_name(name)} is {reason}" for name, reason in skipped.items())


def full_name(provider: str) -> str:
    """The full name of `cuda` or `CUDAExecutionProvider`; an unknown name only gets the suffix."""
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
