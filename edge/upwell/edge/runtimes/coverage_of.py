"""Coverage of a model file by the runtime it belongs to."""

from __future__ import annotations

from pathlib import Path

from upwell.edge.runtimes.coverage import Coverage
from upwell.edge.runtimes.load import needs_onnxruntime, runtime_of
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions


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
