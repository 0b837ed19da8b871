"""How much work each node of an ONNX graph is, by its shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from upwell.edge.runtimes.onnx.graph import OnnxGraph, OnnxNode

_CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
_PRODUCTS = ("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul")
_RECURRENT = ("LSTM", "GRU", "RNN")
_CONTROL_FLOW = ("If", "Loop", "Scan")


def work_of(graph: OnnxGraph, constants: set[str], node: OnnxNode) -> float:
    """Multiplications of one run of `node`, or elements written where it multiplies nothing; NaN without the shapes.

    A dimension that varies counts as 1. What depends on `constants` alone is done once at load and counts nothing.
    """
    if node.operator in _CONTROL_FLOW:
        return math.nan
    if all(name in constants for name in node.inputs if name):
        return 0.0
    written = _elements(graph, node.outputs, 0)
    if node.operator in _CONVOLUTIONS:
        return written * _per_output(graph, node, _CONVOLUTIONS[node.operator])
    if node.operator == "ConvTranspose":
        return _elements(graph, node.inputs, 0) * _per_output(graph, node, 1)
    if node.operator in _PRODUCTS:
        return written * _size(graph, node.inputs, 0, -1)
    if node.operator in ("Gemm", "QGemm"):
        rows = _size(graph, node.outputs, 0, 0)
        return written * _elements(graph, node.inputs, 0) / rows if rows else math.nan
    if node.operator in _RECURRENT:
        steps = _size(graph, node.inputs, 0, 0) * _size(graph, node.inputs, 0, 1)
        return steps * (_elements(graph, node.inputs, 1) + _elements(graph, node.inputs, 2))
    return written


def constant_tensors(graph: OnnxGraph) -> set[str]:
    """Tensors that are the same in each run: initializers, and what nodes make of nothing else."""
    constants = set(graph.constants)
    for node in graph.nodes:
        if node.operator not in _CONTROL_FLOW and all(name in constants for name in node.inputs if name):
            constants.update(node.outputs)
    return constants


def _per_output(graph: OnnxGraph, node: OnnxNode, place: int) -> float:
    shape = _shape(graph, node.inputs, place)
    return math.nan if shape is None else float(math.prod(shape[1:]))


def _elements(graph: OnnxGraph, names: Sequence[str], place: int) -> float:
    shape = _shape(graph, names, place)
    return math.nan if shape is None else float(math.prod(shape))


def _size(graph: OnnxGraph, names: Sequence[str], place: int, axis: int) -> float:
    shape = _shape(graph, names, place)
    return float(shape[axis]) if shape and -len(shape) <= axis < len(shape) else math.nan


def _shape(graph: OnnxGraph, names: Sequence[str], place: int) -> tuple[int, ...] | None:
    shape = graph.shapes.get(names[place]) if place < len(names) else None
    return None if shape is None else tuple(1 if size < 0 else size for size in shape)
