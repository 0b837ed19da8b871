"""Reads a model file of any format as a planner graph."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.partition.model_graph import Graph


def read_graph(path: Path) -> Graph:
    """The main graph of the .onnx, .tflite or .pt2 file at `path`: one node per operator, without weights.

    Raises `ConfigError` for unreadable and unknown files, and if the package that reads the format is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in (".onnx", ".tflite", ".pt2"):
        raise ConfigError.at(path, "unknown model format; expected .onnx, .tflite or .pt2 (of torch.export.save)")
    if not path.is_file():
        raise ConfigError.at(path, "no such file; expected a model")
    with ExtraMissing.on_import("partition", "reading it needs the package PACKAGE", path=path):
        if suffix == ".onnx":
            from upwell.shared.partition.read_onnx import read_onnx

            return read_onnx(path)
        if suffix == ".pt2":
            from upwell.shared.partition.torch_graph import read_torch

            return read_torch(path)
        from upwell.shared.partition.read_tflite import read_tflite

        return read_tflite(path)
