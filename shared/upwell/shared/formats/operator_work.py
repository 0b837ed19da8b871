"""Estimates the work of operators: multiply-adds for matrix operators, elements for all others.

The estimate uses shapes alone. It tells what share of a model an accelerator took, chooses which cuts to measure, and
divides time between two measured cuts. It is never used as a cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Shape: TypeAlias = "Sequence[int] | None"
"""The shape for one row; None if unknown."""

_Rule: TypeAlias = Callable[[Sequence[Shape], Sequence[Shape]], float]


def _times_filter(at: int, kept: slice = slice(1, None), per: int | None = None) -> _Rule:
    """Elements of the first output (or of input `per`) times the dimensions `kept` of the filter."""

    def macs(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
        counted = outputs[0] if per is None else inputs[per]
        return math.prod(_known(counted)) * math.prod(_known(inputs[at])[kept])

    return macs


def _times_depth(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """[..., m, k] times [..., k, n]: elements of the output times k."""
    return math.prod(_known(outputs[0])) * _known(inputs[0])[-1]


def _either_way(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """The same if the first may be stored as [k, m]: k is the other dimension beside m."""
    left, output = _known(inputs[0]), _known(outputs[0])
    return math.prod(output) * left[-2] * left[-1] / output[-2]


def _recurrent(inputs: Sequence[Shape], _: Sequence[Shape]) -> float:
    """Each of [steps, rows] is multiplied by all weights, those of the input and those of the state."""
    return math.prod(_known(inputs[0])[:2]) * (math.prod(_known(inputs[1])) + math.prod(_known(inputs[2])))


def _known(shape: Shape) -> Sequence[int]:
    if shape is None:
        raise ValueError("no shape")
    return shape


_RULES: Mapping[str, _Rule] = {
    "Conv": _times_filter(1),
    "ConvInteger": _times_filter(1),
    "QLinearConv": _times_filter(3),
    "ConvTranspose": _times_filter(1, per=0),
    "com.microsoft:FusedConv": _times_filter(1),
    "Gemm": _either_way,
    "com.microsoft:FusedGemm": _either_way,
    "com.microsoft:QGemm": _either_way,
    "MatMul": _times_depth,
    "MatMulInteger": _times_depth,
    "QLinearMatMul": _times_depth,
    "com.microsoft:FusedMatMul": _times_depth,
    "com.microsoft:MatMulNBits": _times_depth,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "CONV_2D": _times_filter(1),
    "CONV_3D": _times_filter(1, slice(None, -1)),
    "DEPTHWISE_CONV_2D": _times_filter(1, slice(1, 3)),
    "TRANSPOSE_CONV": _times_filter(1, slice(None, 3), per=2),
    "FULLY_CONNECTED": _times_filter(1),
    "BATCH_MATMUL": _either_way,
}
"""Work functions by operator: `OnnxNode.op` for ONNX, or TFLite's name."""


def work_of(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape], read: Sequence[Shape]) -> float:
    """Multiply-adds of an operator with these `inputs`, weights included.

    For other operators the elements of the largest tensor that they produce or `read`, without weights. NaN if the
    needed shapes are unknown or not those of any tensor.
    """
    if op not in _RULES and None in outputs:
        return math.nan
    try:
        if op in _RULES:
            return float(_RULES[op](inputs, outputs))
        return float(max((math.prod(shape) for shape in (*outputs, *read) if shape is not None), default=0))
    except (IndexError, OverflowError, ValueError, ZeroDivisionError):  # also for ranks that it does not allow
        return math.nan
