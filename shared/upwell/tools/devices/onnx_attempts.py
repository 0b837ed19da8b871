"""What the installed ONNX Runtime offers here: its CPU, its built-in providers, and installed plugins."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.tools.devices.runtime_probe import DeviceAttempt, Row, judged, with_options
from upwell.tools.devices.sample_models import try_samples

_CPU = "CPUExecutionProvider"
_OPTIONS = RuntimeOptions(threads=1)
_ELSEWHERE: Mapping[str, str] = {"AzureExecutionProvider": "it calls a network service, which is not this device"}
PLUGINS: Mapping[str, str] = {"onnxruntime_qnn": "QNNExecutionProvider"}
"""Packages with a plugin provider, and its name."""

DEVICES: Mapping[str, Sequence[Mapping[str, str]]] = {
    "QNNExecutionProvider": ({"backend_type": "htp"}, {"backend_type": "gpu"}),
    "OpenVINOExecutionProvider": ({"device_type": "NPU"}, {"device_type": "GPU"}, {"device_type": "CPU"}),
}
"""The options that select a device of providers with several; others choose their own."""


def version() -> str:
    """The package and its version, as the runtime reports it."""
    return f"onnxruntime {onnxruntime.__version__}"


def attempts() -> Sequence[DeviceAttempt]:
    """One attempt for each provider, and for each of its devices."""
    found = [DeviceAttempt("CPU", lambda: judged(version(), "CPU", try_samples(".onnx", _OPTIONS, None)))]
    for provider in offered():
        name = short(provider)
        if provider in _ELSEWHERE:
            reason = _ELSEWHERE[provider]
            found.append(DeviceAttempt(name, partial(Row, version(), name, "offered, not executed", reason=reason)))
            continue
        for options in DEVICES.get(provider, ({},)):
            accelerator = AcceleratorOptions(provider=name, options=dict(options))
            found.append(DeviceAttempt(" ".join([name, *options.values()]), partial(_built_in, provider, accelerator)))
    return found


def plugin(library: Path) -> Row:
    """A plugin library of the user's, with its first provider and default options."""
    known = {_CPU, *onnxruntime.get_available_providers()}
    onnxruntime.register_execution_provider_library(library.name, str(library))
    names = [one.ep_name for one in onnxruntime.get_ep_devices() if one.ep_name not in known]
    listed: Sequence[str] = devices(names[0]) if names else ()
    onnxruntime.unregister_execution_provider_library(library.name)
    if not names:
        return Row(version(), library.name, "not usable", reason="it is loaded but finds no device here")
    accelerator = AcceleratorOptions(provider=names[0], library=library)
    return _tried(accelerator, names[0], listed)


def _built_in(provider: str, accelerator: AcceleratorOptions) -> Row:
    return _tried(accelerator, accelerator.provider, devices(provider))


def _tried(accelerator: AcceleratorOptions, name: str, listed: Sequence[str]) -> Row:
    row = judged(version(), name, try_samples(".onnx", _OPTIONS, accelerator))
    return with_options(row, accelerator.option_texts(), listed)


def offered() -> Sequence[str]:
    """The full names of all providers except the CPU's: built-in ones, and those of plugin packages."""
    plugins = [name for package, name in PLUGINS.items() if importlib.util.find_spec(package) is not None]
    built_in = [name for name in onnxruntime.get_available_providers() if name != _CPU]
    return list(dict.fromkeys([*built_in, *plugins]))


def short(provider: str) -> str:
    """`QNNExecutionProvider` -> `qnn`, as in agent.yaml."""
    return provider.removesuffix("ExecutionProvider").lower()


def devices(provider: str) -> Sequence[str]:
    """The devices that ONNX Runtime lists for a provider: kind, vendor and metadata; none before 1.22."""
    listed: Sequence[Any] = getattr(onnxruntime, "get_ep_devices", list)()
    return [_described(one) for one in listed if one.ep_name == provider]


def _described(listed: Any) -> str:
    """For example `NPU of Qualcomm (0x5143:0x0a01)`."""
    device = listed.device
    kind = str(device.type).rpartition(".")[2]
    vendor = device.vendor or "an unnamed vendor"
    return f"{kind} of {vendor} (0x{device.vendor_id:04x}:0x{device.device_id:04x})"
