"""Splitting a file once, as tests do; the commands cut a model that they have read more than once."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.partition.graph import Graph
from upwell.shared.partition.split import onnx, tflite
from upwell.shared.partition.split.halves import Halves
from upwell.shared.partition.split.onnx_whole import OnnxWhole
from upwell.shared.partition.split.tflite_whole import TfliteWhole


def split_onnx(path: Path, graph: Graph, edge: frozenset[int]) -> Halves:
    return onnx.split_whole(OnnxWhole.read(path), graph, edge)


def split_tflite(path: Path, graph: Graph, edge: frozenset[int]) -> Halves:
    return tflite.split_whole(TfliteWhole.read(path), graph, edge)
