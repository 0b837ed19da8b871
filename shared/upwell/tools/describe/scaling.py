"""Whether a model scales pixels of 0 to 255 itself, as those of Keras do that begin with a layer `Rescaling`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.graph import OnnxGraph, read_graph
from upwell.shared.formats.tflite.flatbuffer import BadTfliteFile, Flatbuffer
from upwell.shared.formats.tflite.model import read_model
from upwell.shared.tensors import Array

_FLOAT_ONNX, _FLOAT_TFLITE = 1, 0
_BUFFERS = 4
_MOST_BYTES = 4096
_SAME = ("Identity", "Cast", "Transpose", "TRANSPOSE")
_TFLITE: Mapping[int, str] = MappingProxyType({18: "Mul", 39: "TRANSPOSE", 41: "Sub", 42: "Div"})
_SMALL, _LARGE, _MANY_LEVELS = 0.02, 50.0, 2.0
"""Factors, divisors and means of pixels; those of numbers from 0 to 1 are nowhere near."""

_Step = tuple[str, Array | None, str]
"""The operator that reads a tensor, the constant beside it, and what it makes."""


def takes_pixels(model: Path, name: str) -> bool:
    """Whether the first arithmetic on the input `name` is a product, quotient or difference that only pixels of 0 to
    255 are meant for."""
    try:
        name, steps = (name, _onnx_steps(model)) if model.suffix == ".onnx" else _tflite_steps(model)
    except (BadOnnxFile, BadTfliteFile, OSError):
        return False  # the runtime says what is wrong with it
    while len(readers := steps.pop(name, ())) == 1:
        operator, constant, name = readers[0]
        if operator not in _SAME:
            return constant is not None and constant.size > 0 and _is_for_pixels(operator, np.abs(constant))
    return False


def _is_for_pixels(operator: str, size: Array) -> bool:
    if operator == "Mul":
        return bool(size.min() > 0 and size.max() <= _SMALL)
    return bool(size.min() >= {"Div": _LARGE, "Sub": _MANY_LEVELS}.get(operator, np.inf))


def _onnx_steps(model: Path) -> dict[str, Sequence[_Step]]:
    graph = read_graph(model)
    steps: dict[str, list[_Step]] = {}
    for node in graph.nodes:
        if node.inputs and node.outputs:
            constant = _onnx_constant(graph, node.inputs[1]) if len(node.inputs) == 2 else None
            steps.setdefault(node.inputs[0], []).append((node.operator, constant, node.outputs[0]))
    return dict(steps)


def _onnx_constant(graph: OnnxGraph, name: str) -> Array | None:
    constant = graph.constants.get(name)
    if constant is None or constant.dtype != _FLOAT_ONNX or constant.raw is None:
        return None
    begin, end = constant.raw
    if (end - begin) % 4 or end - begin > _MOST_BYTES:
        return None
    with open_plain(graph.path) as file:
        file.seek(begin)
        return np.frombuffer(file.read(end - begin), "<f4")


def _tflite_steps(model: Path) -> tuple[str, dict[str, Sequence[_Step]]]:
    """With them the first input's own name, which a signature does not keep."""
    with open_plain(model) as file:
        data = file.read()
    graph, buffers = read_model(data)[0], Flatbuffer(data).root().tables(_BUFFERS)
    steps: dict[str, list[_Step]] = {}
    for operator in graph.operators:
        if min(operator.inputs, default=-1) < 0 or not operator.outputs:
            continue
        read = [graph.tensors[at] for at in operator.inputs]
        constant = None
        if len(read) == 2 and read[1].type == _FLOAT_TFLITE and 0 < read[1].buffer < len(buffers):
            raw = buffers[read[1].buffer].raw(0)
            constant = np.frombuffer(raw, "<f4") if len(raw) % 4 == 0 and len(raw) <= _MOST_BYTES else None
        made = graph.tensors[operator.outputs[0]].name
        steps.setdefault(read[0].name, []).append((_TFLITE.get(operator.code, ""), constant, made))
    return graph.tensors[graph.inputs[0]].name if graph.inputs else "", dict(steps)
