"""The execution providers of this process: built into ONNX Runtime, or plugins with their devices.

A listed provider is no evidence: `providers=[...]` with a registered plugin's name silently gives the CPU, and some
providers start and execute nothing. Problems that are known before a session is made are reported here.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.onnxruntime_import import onnxruntime, openvino_devices
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, located

CPU = "CPUExecutionProvider"
QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

_TEXT_END = 150
_DEVICE_OPTION = "device"
_KINDS = ("npu", "gpu", "cpu")
_PLUGIN_PACKAGES = {QNN: "onnxruntime_qnn"}
"""Packages that contain a plugin provider and give its path by `get_library_path()`."""
_QNN_WRITERS = ("saver", "ir")
_SEVERAL_DEVICES = ("AUTO", "HETERO", "MULTI", "BATCH")

_registered: dict[str, Path] = {}
_registration_lock = threading.Lock()


@dataclass(frozen=True)
class Provider:
    """An execution provider of this process: built in (no `device`) or a plugin on one of its devices."""

    name: str
    options: Mapping[str, str]
    device: Any = None
    library: Path | None = None


def find_provider(wanted: AcceleratorOptions) -> Provider:
    """Find the provider that `wanted` names, with its options as text.

    A plugin gets one device: of the kind in `options: {device: npu | gpu | cpu}`, else the first of the best kind in
    that order. Raises `AcceleratorNotUsable` if it is missing, or known to execute nothing or on another device.
    """
    name, options = _full_name(wanted.provider), wanted.option_texts()
    if name == CPU:
        raise AcceleratorNotUsable(
            "ONNX Runtime's CPU provider is not an accelerator; leave it out; the CPU is always tried last"
        )
    # A registered plugin is listed as available too, but requesting it by name gives the CPU.
    if wanted.library is None and name not in _registered and name in onnxruntime.get_available_providers():
        _refuse_pretenders(name, options)
        return Provider(name, options)
    if not hasattr(onnxruntime, "get_ep_devices"):
        raise AcceleratorNotUsable(
            f"onnxruntime {onnxruntime.__version__} has no {name} and does not support plugin providers"
        )
    library = wanted.library or _registered.get(name) or _packaged_library(name)
    if library.name == str(library):  # a bare name, of which the cache needs the file
        library = located(library) or library
    _register(name, library)
    _refuse_pretenders(name, options)
    kind = options.pop(_DEVICE_OPTION) if options.get(_DEVICE_OPTION) in _KINDS else ""
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    return Provider(name, options, _choose(name, devices, kind), library)


def plain_text(error: Exception) -> str:
    """An ONNX Runtime error on one line, shortened in the middle: the operator is at the start, the cause at the
    end."""
    text = " ".join(str(error).split())
    _, tag, rest = text.rpartition("[ONNXRuntimeError] : ")
    plain = rest.split(" : ", 2)[-1] if tag else text
    return plain if len(plain) <= 2 * _TEXT_END else f"{plain[:_TEXT_END]} ... {plain[-_TEXT_END:]}"


def _full_name(provider: str) -> str:
    """The full name of `qnn` or `QNNExecutionProvider`; other names are those of plugins."""
    key = provider.lower().removesuffix("executionprovider") + "executionprovider"
    return next((name for name in onnxruntime.get_all_providers() if name.lower() == key), provider)


def _choose(name: str, devices: Sequence[Any], kind: str) -> Any:
    found = {device.device.type.name.lower(): device for device in reversed(devices)}
    for wanted in (kind,) if kind else _KINDS:
        if wanted in found:
            return found[wanted]
    has = f"; it finds {', '.join(found)}" if found else ""
    raise AcceleratorNotUsable(f"{name} is loaded but finds no {f'{kind} ' if kind else ''}device here{has}")


def _refuse_pretenders(name: str, options: Mapping[str, str]) -> None:
    if name == QNN:
        library = Path(options.get("backend_path", "")).stem.lower().removeprefix("lib").removeprefix("qnn")
        backend = options.get("backend_type", library).lower()
        if backend in _QNN_WRITERS:
            raise AcceleratorNotUsable(
                f"QNN's backend {backend!r} writes the model to a file and executes nothing, so its outputs would be "
                "garbage; use 'htp'"
            )
    elif name == OPENVINO:
        _check_openvino_device(options.get("device_type", ""))


def _check_openvino_device(device_type: str) -> None:
    """Refuse a missing device, for which OpenVINO only logs a line and runs nothing."""
    several, _, names = device_type.rpartition(":")
    devices = [] if names in _SEVERAL_DEVICES else [name for name in names.split(",") if name]
    found = openvino_devices()
    here = ", ".join(found) or "nothing"
    if names in _SEVERAL_DEVICES or (several and len(devices) != 1):
        raise AcceleratorNotUsable(
            f"with device_type {device_type!r} OpenVINO chooses a device, perhaps the CPU, and does not report "
            f"which; name one (OpenVINO finds: {here})"
        )
    for device in devices:
        if device not in found and not any(one.startswith(f"{device}.") for one in found):
            raise AcceleratorNotUsable(f"OpenVINO finds no device {device!r}; it finds: {here}")


def _packaged_library(name: str) -> Path:
    package = _PLUGIN_PACKAGES.get(name)
    try:
        if package is not None:
            return Path(importlib.import_module(package).get_library_path())
    except ImportError:
        pass
    available = ", ".join(onnxruntime.get_available_providers())
    hint = f"; install {package.replace('_', '-')} or name its `library`" if package else "; a plugin needs `library`"
    raise AcceleratorNotUsable(f"this onnxruntime has no {name}; it has {available}{hint}")


def _register(name: str, library: Path) -> None:
    """Load a plugin library once per process; sessions keep using it, so it is never unloaded."""
    with _registration_lock:
        if _registered.get(name, library) != library:
            raise AcceleratorNotUsable(f"{name} is already loaded from {_registered[name]} in this process")
        if name in _registered:
            return
        if not library.is_file():
            raise AcceleratorNotUsable(f"no such library: {library}")
        try:
            onnxruntime.register_execution_provider_library(name, str(library))
        except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
            raise AcceleratorNotUsable(f"{library} cannot be loaded: {plain_text(error)}") from None
        _registered[name] = library
