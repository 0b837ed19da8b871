"""A model file as a graph, whatever its format."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph import Graph

_EXTRA = "pip install 'upwell[partition]'"


def read_graph(path: Path) -> Graph:
    """The main graph of the .onnx or .tflite file at `path`: a node per operator, weights left out.

    Raises `ConfigError` for a file that cannot be read or is none of these, and where the package that reads it is not
    installed.
    """
    suffix = path.suffix.lower()
    if suffix not in (".onnx", ".tflite"):
        raise ConfigError.at(path, "unknown model format; expected .onnx or .tflite")
    if not path.is_file():
        raise ConfigError.at(path, "no such file; expected a model")
    try:
        if suffix == ".onnx":
            from upwell.shared.partition.read_onnx import read_onnx

            return read_onnx(path)
        from upwell.shared.partition.read_tflite import read_tflite

        return read_tflite(path)
    except ModuleNotFoundError as error:
        raise ConfigError.at(path, f"reading it needs the package {error.name}: {_EXTRA}") from None
