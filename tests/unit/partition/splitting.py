"""Splitting a file once, as tests do; the commands cut a model that they have read more than once."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.partition.model_graph import Graph
from upwell.shared.partition.split.model_halves import Halves
from upwell.shared.partition.split.onnx_halves import OnnxModelFile
from upwell.shared.partition.split.split_model import split_model
from upwell.shared.partition.split.tflite_halves import TfliteModelFile


def split_onnx(path: Path, graph: Graph, edge: frozenset[int]) -> Halves:
    return split_model(OnnxModelFile.read(path), graph, edge)


def split_tflite(path: Path, graph: Graph, edge: frozenset[int]) -> Halves:
    return split_model(TfliteModelFile.read(path), graph, edge)
