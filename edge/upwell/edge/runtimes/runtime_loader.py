"""Choosing and importing the runtime of a model file, only when it is needed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.placement import Coverage
from upwell.edge.runtimes.runtime_options import LITERT_NPU, AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError, ExtraMissing

_BY_SUFFIX = {".onnx": "onnx", ".tflite": "tflite"}


def runtime_of(path: Path, options: RuntimeOptions) -> str:
    """The runtime named in `options` or implied by the suffix of `path`: `onnx` or `tflite`.

    Raises `ConfigError` if neither gives one.
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

    `options.accelerator` is ignored: the caller decides which one is tried. In `cache_dir` a runtime may store what an
    accelerator compiled, for the next start.

    Raises `ConfigError` if the runtime is unknown or its package is not installed (naming the extra), and for any
    problem with the model; and `AcceleratorNotUsable` if `accelerator` takes no node here, or not every node with
    `require: must`. Loading never falls back to the CPU; an accelerator that fails later does (`FallbackRuntime`).
    """
    options = options or RuntimeOptions()
    if accelerator is None:
        return _open(path, options, None, None)
    from upwell.edge.runtimes.fallback_runtime import FallbackRuntime

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
        from upwell.edge.runtimes.tflite.npu_runtime import CompiledRuntime

        return CompiledRuntime(path, options, accelerator)
    from upwell.edge.runtimes.tflite.runtime import TfliteRuntime

    return TfliteRuntime(path, options, accelerator)


def coverage_of(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    """The coverage of the model at `path` by `accelerator`, whatever `accelerator.require` says.

    Raises `ConfigError` as `load_runtime` does, and `AcceleratorNotUsable` if the accelerator cannot be loaded or
    refuses the model; if it takes no node, the coverage says so.
    """
    if runtime_of(path, options) == "tflite":
        from upwell.edge.runtimes.tflite.runtime import coverage_of as tflite_coverage_of

        return tflite_coverage_of(path, options, accelerator)
    with needs_onnxruntime(path):
        from upwell.edge.runtimes.onnx.runtime import coverage_of as onnx_coverage_of
    return onnx_coverage_of(path, options, accelerator)


def needs_onnxruntime(path: Path) -> AbstractContextManager[None]:
    """For imports of what needs ONNX Runtime to run the model at `path`."""
    return ExtraMissing.on_import("onnx", "onnxruntime is not installed", path=path)
