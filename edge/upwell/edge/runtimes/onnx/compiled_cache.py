"""What execution providers compile, kept on disk for the next start.

An entry is a folder with the provider's files and, written last, a seal with their SHA-256: a context of QNN with 64
bytes overwritten loads and runs without a word. An entry without a whole seal counts as none.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.onnx.providers import OPENVINO, QNN, Provider
from upwell.edge.runtimes.options import AcceleratorOptions
from upwell.edge.runtimes.ort import onnxruntime
from upwell.shared.digest import model_digest, sha256_of
from upwell.shared.files import read_json

_SEAL = "seal.json"
_CONTEXT = "context.onnx"
_MAX_SEAL_BYTES = 1 << 22
_MAX_ENTRIES = 16
_UNFINISHED = ".unfinished"
_ABANDONED_S = 86400.0
_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/intel_vpu/version", "/sys/module/amdxdna/version")
_compiling = threading.Lock()
"""One at a time: compilers of NPUs take gigabytes."""


@dataclass(frozen=True)
class CompiledCache:
    """What a provider must be told so that it keeps what it compiles in a folder.

    With `context` ONNX Runtime writes a model of compiled nodes, which is loaded in place of the original; else the
    provider manages files of its own by `options`, in which `{}` stands for the folder.
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
"""The providers that keep something. QNN was executed without a device; the others are untested on hardware."""


@dataclass(frozen=True)
class CacheEntry:
    """What one provider compiled of one model: `folder` may be there or not."""

    folder: Path
    cache: CompiledCache

    @property
    def context(self) -> Path | None:
        """The compiled model to load in place of the original, for a provider that makes one."""
        return self.folder / _CONTEXT if self.cache.context else None

    def options(self, folder: Path) -> dict[str, str]:
        """The provider's options for keeping its files in `folder`."""
        return {key: value.replace("{}", str(folder)) for key, value in self.cache.options.items()}

    def settings(self, folder: Path) -> dict[str, str]:
        """The session's settings that make a context in `folder`."""
        if not self.cache.context:
            return {}
        # Embedded, a context could not be larger than the 2 GB of a protobuf message.
        context = {"ep.context_enable": "1", "ep.context_embed_mode": "0"}
        return {**context, "ep.context_file_path": str(folder / _CONTEXT)}

    def kept(self) -> Placement | None:
        """The placement when it was compiled; None where nothing whole is there, and then nothing is left there."""
        try:
            placement = _sealed_placement(self.folder)
        except (ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError):
            self.remove()
            return None
        os.utime(self.folder)
        return placement

    @contextmanager
    def unfinished(self) -> Iterator[Path]:
        """An empty folder to compile into, gone at the end unless `keep` took it. One at a time in this process."""
        with _compiling:
            folder = self.folder.with_name(f"{self.folder.name}.{os.getpid()}{_UNFINISHED}")
            _remove(folder)
            folder.mkdir(parents=True)
            try:
                yield folder
            finally:
                _remove(folder)

    def keep(self, folder: Path, placement: Placement) -> bool:
        """Seal what was compiled into `folder` and put it in its place; False where the provider wrote nothing."""
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
        """Remove it, if it is there."""
        _remove(self.folder)

    def _remove_others(self) -> None:
        """Remove those of other versions, what a crash left, and the longest unused beyond `_MAX_ENTRIES`."""
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
    """Where `provider` keeps what it compiles of the model at `path`; None for one that keeps nothing.

    Its name is made of the model, its batch, the provider and its options on one side, and of everything's version on
    the other.
    Raises `OSError` where a file cannot be read.
    """
    cache = COMPILED_CACHES.get(provider.name)
    # On its CPU device OpenVINO 1.24.1 writes its cache anew at each load.
    if cache is None or (provider.name == OPENVINO and "CPU" in provider.options.get("device_type", "CPU")):
        return None
    # `must` compiles in strict mode, in which some providers take more nodes.
    what = [model_digest(path), batch, provider.name, sorted(provider.options.items()), wanted.require]
    return CacheEntry(cache_dir / f"{_short(what)}-{_short(_versions(provider))}", cache)


def _versions(provider: Provider) -> list[str]:
    found = [onnxruntime.__version__, platform.machine()]
    if provider.library is not None:
        # The libraries of a vendor's SDK lie beside the plugin; their sizes tell one release from another.
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
    """Whether the process that compiled there is gone, as far as the system tells; else whether it is a day old."""
    pid = folder.name.removesuffix(_UNFINISHED).rpartition(".")[2]
    if Path("/proc/self").exists():
        return not Path("/proc", pid).exists()
    return time.time() - folder.stat().st_mtime > _ABANDONED_S


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
