"""Opening ONNX Runtime sessions: on the CPU, or on an execution provider with evidence of what it took."""

from __future__ import annotations

import importlib
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.onnx_evidence import (
    RECORD_KEY,
    AssignedNode,
    assigned_nodes,
    from_profile,
    records_assignment,
)
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable, from_nodes, judge, open_without, unused
from upwell.shared.errors import ConfigError

_CPU = "CPUExecutionProvider"
_LOG_ERRORS = 3
_TEXT_END = 150
_NO_FALLBACK = {"enable_fallback": 0}
"""Else a session prints to standard output, makes itself anew on the CPU and says nothing to the program."""

_PLUGIN_PACKAGES = {"QNNExecutionProvider": "onnxruntime_qnn"}
"""Packages that bring a provider as a plugin and tell where it is by `get_library_path()`."""

_registered: dict[str, Path] = {}
_registration_lock = threading.Lock()


@dataclass(frozen=True)
class _Provider:
    """An execution provider that this process has: built in (no devices) or a plugin with its devices."""

    name: str
    devices: Sequence[Any] = ()


def open_session(path: Path, options: RuntimeOptions) -> tuple[Any, Placement]:
    """A session for the model at `path`, on the accelerator asked for or on the CPU.

    Raises `ConfigError` where the model cannot be loaded, or where `must` cannot be kept.
    """
    wanted = options.wanted_accelerator
    if wanted is None:
        return open_on_cpu(path, options)
    try:
        session, placement = _open_on_provider(path, options, wanted)
    except AcceleratorNotUsable as reason:
        session, placement = None, unused(wanted, str(reason))
    judge(path, wanted, placement)
    if placement.nodes_on_accelerator:
        return session, placement
    on_cpu, cpu_placement = open_without(path, placement, lambda: open_on_cpu(path, options))
    return on_cpu, unused(wanted, placement.reason, cpu_placement.nodes or placement.nodes)


def open_on_cpu(path: Path, options: RuntimeOptions) -> tuple[Any, Placement]:
    """A session on the CPU. Raises `ConfigError` where the model cannot be loaded."""
    settings = _session_options(options)
    try:
        session = onnxruntime.InferenceSession(str(path), settings, providers=[_CPU], **_NO_FALLBACK)
    except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
        raise ConfigError.at(path, f"ONNX Runtime cannot load the model: {plain_text(error)}") from None
    nodes = assigned_nodes(session) if records_assignment() else ()
    return session, Placement(nodes=len(nodes))


def plain_text(error: Exception) -> str:
    """An error of ONNX Runtime on one line, shortened in the middle: the point is at its end, the operator before."""
    text = " ".join(str(error).split())
    _, tag, rest = text.rpartition("[ONNXRuntimeError] : ")
    plain = rest.split(" : ", 2)[-1] if tag else text
    return plain if len(plain) <= 2 * _TEXT_END else f"{plain[:_TEXT_END]} ... {plain[-_TEXT_END:]}"


def _session_options(options: RuntimeOptions) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _LOG_ERRORS
    settings.intra_op_num_threads = options.thread_count
    settings.inter_op_num_threads = 1
    # Threads that spin between runs answer a few microseconds sooner and drain a battery.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.add_session_config_entry(RECORD_KEY, "1")
    return settings


def _open_on_provider(path: Path, options: RuntimeOptions, wanted: AcceleratorOptions) -> tuple[Any, Placement]:
    provider = _find_provider(wanted)
    settings = _session_options(options)
    with tempfile.TemporaryDirectory(prefix="upwell-profile-") as profiles:
        if not records_assignment():
            settings.enable_profiling = True
            settings.profile_file_prefix = str(Path(profiles) / "profile")
        session = _create(path, settings, provider, wanted)
        nodes = assigned_nodes(session) if records_assignment() else _profiled(session)
    left = tuple(node.label for node in nodes if node.provider != provider.name)
    return session, from_nodes(wanted, len(nodes), left)


def _create(path: Path, settings: Any, provider: _Provider, wanted: AcceleratorOptions) -> Any:
    try:
        if provider.devices:
            settings.add_provider_for_devices(provider.devices, wanted.option_texts())
            session = onnxruntime.InferenceSession(str(path), settings, **_NO_FALLBACK)
        else:
            chain = [(provider.name, wanted.option_texts()), _CPU]
            session = onnxruntime.InferenceSession(str(path), settings, providers=chain, **_NO_FALLBACK)
    except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
        raise AcceleratorNotUsable(f"{provider.name} refused the model: {plain_text(error)}") from None
    if not provider.devices and provider.name not in session.get_providers():
        raise AcceleratorNotUsable(f"{provider.name} does not start here; ONNX Runtime wrote why to standard error")
    return session


def _profiled(session: Any) -> Sequence[AssignedNode]:
    try:
        return from_profile(session)
    except Exception as error:  # noqa: BLE001 (the probing run may fail in any kernel)
        raise AcceleratorNotUsable(
            f"onnxruntime {onnxruntime.__version__} cannot tell where the nodes run (1.24 and later can), "
            f"and a probing run failed: {plain_text(error)}"
        ) from None


def _find_provider(wanted: AcceleratorOptions) -> _Provider:
    name = _full_name(wanted.provider)
    # A plugin that has been registered is listed as available too, and asked for by name it gives the CPU.
    if wanted.library is None and name not in _registered and name in onnxruntime.get_available_providers():
        return _Provider(name)
    if not hasattr(onnxruntime, "get_ep_devices"):
        raise AcceleratorNotUsable(f"onnxruntime {onnxruntime.__version__} has no {name} and knows no plugin providers")
    _register(name, wanted.library or _registered.get(name) or _packaged_library(name))
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    if not devices:
        raise AcceleratorNotUsable(f"{name} is loaded and finds no device here")
    return _Provider(name, devices)


def _full_name(provider: str) -> str:
    """`qnn` or `QNNExecutionProvider` as ONNX Runtime spells it; other names are a plugin's own."""
    key = provider.lower().removesuffix("executionprovider") + "executionprovider"
    return next((name for name in onnxruntime.get_all_providers() if name.lower() == key), provider)


def _packaged_library(name: str) -> Path:
    package = _PLUGIN_PACKAGES.get(name)
    try:
        if package is not None:
            return Path(importlib.import_module(package).get_library_path())
    except ImportError:
        pass
    available = ", ".join(onnxruntime.get_available_providers())
    hint = f"; install {package.replace('_', '-')} or name its `library`" if package else "; a plugin needs `library`"
    raise AcceleratorNotUsable(f"this onnxruntime has no {name}, it has {available}{hint}")


def _register(name: str, library: Path) -> None:
    """Load a plugin library once in this process; sessions keep using it, so it is never unloaded."""
    with _registration_lock:
        if _registered.get(name, library) != library:
            raise AcceleratorNotUsable(f"{name} is already loaded from {_registered[name]} in this process")
        if name in _registered:
            return
        if not library.is_file():
            raise AcceleratorNotUsable(f"there is no library {library}")
        try:
            onnxruntime.register_execution_provider_library(name, str(library))
        except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
            raise AcceleratorNotUsable(f"{library} cannot be loaded: {plain_text(error)}") from None
        _registered[name] = library
