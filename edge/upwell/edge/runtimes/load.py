"""Choosing the runtime of a model file. Runtimes are imported when one is needed, not before."""

from __future__ import annotations

from pathlib import Path

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.options import RuntimeOptions
from upwell.shared.errors import ConfigError

_BY_SUFFIX = {".onnx": "onnx", ".tflite": "tflite"}


def load_runtime(path: Path, options: RuntimeOptions | None = None) -> Runtime:
    """Load the model at `path` in the runtime that `options` names or its suffix tells.

    Raises `ConfigError` where neither does, where the runtime's package is not installed (naming the extra that
    brings it), and for everything that is wrong with the model or cannot be kept of what was asked for.
    """
    options = options or RuntimeOptions()
    runtime = options.runtime or _BY_SUFFIX.get(path.suffix.lower())
    if runtime is None:
        raise ConfigError.at(path, f"no runtime is known for suffix {path.suffix!r}, write `runtime: onnx` or `tflite`")
    if runtime == "tflite":
        from upwell.edge.runtimes.tflite import TfliteRuntime

        return TfliteRuntime(path, options)
    try:
        from upwell.edge.runtimes.onnx import OnnxRuntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ConfigError.at(path, "onnxruntime is not installed: pip install 'upwell[onnx]'") from None
    return OnnxRuntime(path, options)
