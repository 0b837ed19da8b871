"""Choosing the runtime of a model file. Runtimes are imported when one is needed, not before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError

LITERT_NPU = "litert_npu"
"""The provider name of LiteRT's own way to an NPU (`CompiledModel`)."""

_BY_SUFFIX = {".onnx": "onnx", ".tflite": "tflite"}


def runtime_of(path: Path, options: RuntimeOptions) -> str:
    """The runtime that `options` names or the suffix of `path` tells: `onnx` or `tflite`.

    Raises `ConfigError` where neither does.
    """
    runtime = options.runtime or _BY_SUFFIX.get(path.suffix.lower())
    if runtime is None:
        raise ConfigError.at(path, f"no runtime is known for suffix {path.suffix!r}, write `runtime: onnx` or `tflite`")
    return runtime


def load_runtime(
    path: Path,
    options: RuntimeOptions | None = None,
    accelerator: AcceleratorOptions | None = None,
    *,
    cache_dir: Path | None = None,
) -> Runtime:
    """Load the model at `path` on `accelerator`, or on the CPU for None.

    `options.accelerator` is not looked at: whoever calls this decides which one is tried. `cache_dir` is where a
    runtime may keep what an accelerator compiled, for the next start.

    Raises `ConfigError` where the runtime is unknown or its package is not installed (naming the extra that brings
    it) and for everything that is wrong with the model, and `AcceleratorNotUsable` where `accelerator` takes no node
    of it here, or with `require: must` not every node. It never falls back to the CPU by itself.
    """
    options = options or RuntimeOptions()
    if runtime_of(path, options) == "tflite":
        return _load_tflite(path, options, accelerator)
    with needs_onnxruntime(path):
        from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
    return OnnxRuntime(path, options, accelerator, cache_dir=cache_dir)


def _load_tflite(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions | None) -> Runtime:
    if accelerator is not None and accelerator.provider == LITERT_NPU:
        from upwell.edge.runtimes.tflite.compiled import CompiledRuntime

        return CompiledRuntime(path, options, accelerator)
    from upwell.edge.runtimes.tflite.runtime import TfliteRuntime

    return TfliteRuntime(path, options, accelerator)


@contextlib.contextmanager
def needs_onnxruntime(path: Path) -> Iterator[None]:
    """Around an import of a module that imports ONNX Runtime: a missing one is a `ConfigError` that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ConfigError.at(path, "onnxruntime is not installed: pip install 'upwell[onnx]'") from None
