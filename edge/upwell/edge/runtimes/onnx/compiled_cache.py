"""A cache on disk of models compiled by execution providers.

An entry is a folder with the provider's files and, written last, a seal with their SHA-256: a QNN context with 64 bytes
overwritten loads and runs without an error. An entry without a valid seal is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.onnx.providers import OPENVINO, QNN, Provider
from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions
from upwell.shared.files import read_json
from upwell.shared.formats.model_digest import model_digest, sha256_of

_SEAL = "seal.json"
_CONTEXT = "context.onnx"
_MAX_SEAL_BYTES = 1 << 22
_MAX_ENTRIES = 16
_UNFINISHED = ".unfinished"
_ABANDONED_S = 86400.0
_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/intel_vpu/version", "/sys/module/amdxdna/version")
_compiling = threading.Lock()
"""Serializes compilation, since NPU compilers take gigabytes."""


@dataclass(frozen=True)
class CompiledCache:
    """The settings with which a provider stores its compiled model in a folder.

    With `context` ONNX Runtime writes a model of compiled nodes, which replaces the original; otherwise the provider
    manages its own files through `options`, in which `{}` stands for the folder.
    """

    context: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


COMPILED_CACHES: Mapping[str, CompiledCache] = {
    QNN: CompiledCache(context=True),
    OPENVINO: CompiledCache(options={"cache_dir": "{}"}),
    "TensorrtExecutionProvider": CompiledCache(
        options={
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": "{}",
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": "{}",
        }
    ),
    "NvTensorRTRTXExecutionProvider": CompiledCache(options={"nv_runtime_cache_path": "{}"}),
    "CoreMLExecutionProvider": CompiledCache(options={"ModelCacheDirectory": "{}"}),
    "MIGraphXExecutionProvider": CompiledCache(options={"migraphx_model_cache_dir": "{}"}),
    "VitisAIExecutionProvider": CompiledCache(options={"cache_dir": "{}", "cache_key": "model"}),
}
"""The providers that can store compiled models. QNN was run without a device; the others are untested on hardware."""


@dataclass(frozen=True)
class CacheEntry:
    """One provider's compiled form of one model; `folder` may not exist yet."""

    folder: Path
    cache: CompiledCache

    @property
    def context(self) -> Path | None:
        """The compiled model to load in place of the original, if the provider makes one."""
        return self.folder / _CONTEXT if self.cache.context else None

    def options(self, folder: Path) -> dict[str, str]:
        """The provider's options for storing its files in `folder`."""
        return {key: value.replace("{}", str(folder)) for key, value in self.cache.options.items()}

    def settings(self, folder: Path) -> dict[str, str]:
        """The session settings that write a context into `folder`."""
        if not self.cache.context:
            return {}
        # An embedded context would be limited to the 2 GB of a protobuf message.
        context = {"ep.context_enable": "1", "ep.context_embed_mode": "0"}
        return {**context, "ep.context_file_path": str(folder / _CONTEXT)}

    def kept(self) -> Placement | None:
        """The placement at compilation; None without a valid entry, in which case remains are removed."""
        try:
            placement = _sealed_placement(self.folder)
        except (ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError):
            self.remove()
            return None
        with suppress(OSError):  # a read-only disk: what was compiled is good all the same
            os.utime(self.folder)
        return placement

    @contextmanager
    def unfinished(self) -> Iterator[Path]:
        """An empty folder to compile into, deleted at the end unless `keep` took it. One at a time in this process."""
        with _compiling:
            folder = self.folder.with_name(f"{self.folder.name}.{os.getpid()}{_UNFINISHED}")
            _remove(folder)
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                _remove(folder)

    def keep(self, folder: Path, placement: Placement) -> bool:
        """Seal the files in `folder` and move it into place; False if the provider wrote nothing."""
        files = {path.relative_to(folder).as_posix(): sha256_of(path).hex() for path in sorted(_files(folder))}
        if not files or (self.cache.context and _CONTEXT not in files):
            return False
        facts = {"files": files, "nodes": placement.nodes, "left_on_cpu": placement.left_on_cpu}
        with (folder / _SEAL).open("w", encoding="utf-8") as file:
            json.dump({**facts, "accelerator": placement.accelerator}, file)
            file.flush()
            os.fsync(file.fileno())
        self.remove()
        folder.rename(self.folder)
        self._remove_others()
        return True

    def remove(self) -> None:
        """Remove the entry if it exists."""
        _remove(self.folder)

    def _remove_others(self) -> None:
        """Remove entries of other versions, remains of a crash, and the least recently used beyond `_MAX_ENTRIES`."""
        stem = self.folder.name.partition("-")[0]
        others = []
        for one in self.folder.parent.iterdir():
            if one.name.endswith(_UNFINISHED):
                if _is_abandoned(one):
                    _remove(one)
            elif one != self.folder and one.name.startswith(f"{stem}-"):
                _remove(one)
            elif one != self.folder:
                others.append(one)
        for one in sorted(others, key=lambda one: one.stat().st_mtime, reverse=True)[_MAX_ENTRIES - 1 :]:
            _remove(one)


def entry_for(
    cache_dir: Path, path: Path, provider: Provider, wanted: AcceleratorOptions, batch: int | None
) -> CacheEntry | None:
    """The cache entry of the model at `path` for `provider`; None if the provider stores nothing.

    Its name has two parts: one for the model, its batch, the provider and its options, and one for all versions. Raises
    `OSError` if a file cannot be read.
    """
    cache = COMPILED_CACHES.get(provider.name)
    # On its CPU device OpenVINO 1.24.1 rewrites its cache at each load.
    if cache is None or (provider.name == OPENVINO and "CPU" in provider.options.get("device_type", "CPU")):
        return None
    # `must` compiles in strict mode, in which some providers take more nodes.
    what = [model_digest(path), batch, provider.name, sorted(provider.options.items()), wanted.require]
    return CacheEntry(cache_dir / f"{_short(what)}-{_short(_versions(provider))}", cache)


def _versions(provider: Provider) -> list[str]:
    found = [onnxruntime.__version__, platform.machine()]
    if provider.library is not None:
        # The libraries of a vendor's SDK lie beside the plugin; their sizes distinguish its releases.
        beside = sorted(one for one in provider.library.parent.iterdir() if one.is_file())
        found += [sha256_of(provider.library).hex(), *(f"{one.name} {one.stat().st_size}" for one in beside)]
    if provider.device is not None:
        device = provider.device.device
        found += [str(provider.device.ep_metadata), f"{device.vendor_id} {device.device_id} {device.metadata}"]
    return found + [Path(name).read_text(errors="replace") for name in _DRIVERS if Path(name).is_file()]


def _short(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def _sealed_placement(folder: Path) -> Placement:
    seal = folder / _SEAL
    facts = read_json(seal, _MAX_SEAL_BYTES)
    if {path.relative_to(folder).as_posix() for path in _files(folder)} != {*facts["files"], _SEAL}:
        raise ValueError(folder)
    for name, digest in facts["files"].items():
        if sha256_of(folder / name).hex() != digest:
            raise ValueError(name)
    nodes, left = int(facts["nodes"]), tuple(map(str, facts["left_on_cpu"]))
    return Placement(str(facts["accelerator"]), nodes, nodes - len(left), left)


def _is_abandoned(folder: Path) -> bool:
    """Whether the process that compiled there has ended, or, if the system cannot tell, the folder is a day old."""
    pid = folder.name.removesuffix(_UNFINISHED).rpartition(".")[2]
    if Path("/proc/self").exists():
        return not Path("/proc", pid).exists()
    return time.time() - folder.stat().st_mtime > _ABANDONED_S


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
