"""Choosing the runtime of a model file. Runtimes are imported when one is needed, not before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.coverage import Coverage
from upwell.edge.runtimes.options import LITERT_NPU, AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import FallbackRuntime
from upwell.shared.errors import ConfigError

_BY_SUFFIX = {".onnx": "onnx", ".tflite": "tflite"}


def runtime_of(path: Path, options: RuntimeOptions) -> str:
    """The runtime that `options` names or the suffix of `path` tells: `onnx` or `tflite`.

    Raises `ConfigError` where neither does.
    """
    runtime = options.runtime or _BY_SUFFIX.get(path.suffix.lower())
    if runtime is None:
        raise ConfigError.at(
            path, "expected a .onnx or .tflite file; for another suffix write `runtime: onnx` or `tflite`"
        )
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
    of it here, or with `require: must` not every node. Nothing falls back to the CPU while it is loaded; an accelerator
    that fails later does (`FallbackRuntime`).
    """
    options = options or RuntimeOptions()
    if accelerator is None:
        return _open(path, options, None, None)
    accelerated = _open(path, options, accelerator, cache_dir)
    on_cpu = options.model_copy(update={"instances": accelerated.instances})
    return FallbackRuntime(path, accelerated, lambda: _open(path, on_cpu, None, None))


def _open(
    path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions | None, cache_dir: Path | None
) -> Runtime:
    if runtime_of(path, options) == "onnx":
        with needs_onnxruntime(path):
            from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
        return OnnxRuntime(path, options, accelerator, cache_dir=cache_dir)
    if accelerator is not None and accelerator.provider == LITERT_NPU:
        from upwell.edge.runtimes.tflite.compiled import CompiledRuntime

        return CompiledRuntime(path, options, accelerator)
    from upwell.edge.runtimes.tflite.runtime import TfliteRuntime

    return TfliteRuntime(path, options, accelerator)


def coverage_of(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    """What `accelerator` takes of the model at `path`, whatever `accelerator.require` says.

    Raises `ConfigError` as `load_runtime` does, and `AcceleratorNotUsable` where the accelerator cannot be loaded or
    refuses the model; where it takes nothing the coverage says so.
    """
    if runtime_of(path, options) == "tflite":
        from upwell.edge.runtimes.tflite.coverage import coverage_of as tflite_coverage_of

        return tflite_coverage_of(path, options, accelerator)
    with needs_onnxruntime(path):
        from upwell.edge.runtimes.onnx.coverage import coverage_of as onnx_coverage_of
    return onnx_coverage_of(path, options, accelerator)


@contextlib.contextmanager
def needs_onnxruntime(path: Path) -> Iterator[None]:
    """Around an import of a module that imports ONNX Runtime: a missing one is a `ConfigError` that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ConfigError.at(path, "onnxruntime is not installed: pip install 'upwell[onnx]'") from None
