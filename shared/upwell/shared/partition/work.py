"""How much an operator has to do: multiply-adds where it multiplies matrices, elements where it does not.

A prior that chooses which cuts to measure, and shares out time between two that were measured. Never a cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

Shape: TypeAlias = "Sequence[int] | None"
"""Sizes for one row; None where it is not known."""

_Rule: TypeAlias = Callable[[Sequence[Shape], Sequence[Shape]], float]


def _times_filter(at: int, kept: slice = slice(1, None), per: str = "output") -> _Rule:
    """Elements of the first output (or of the input `per` names) times the part `kept` of the filter's dimensions."""

    def macs(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
        counted = outputs[0] if per == "output" else inputs[int(per)]
        return math.prod(_known(counted)) * math.prod(_known(inputs[at])[kept])

    return macs


def _times_depth(at: int) -> _Rule:
    """Elements of the output times the last dimension of an input, over which it sums."""

    def macs(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
        return math.prod(_known(outputs[0])) * _known(inputs[at])[-1]

    return macs


def _general(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Gemm, either input transposed: of [m, k] and [k, n] the product of both over the output's, rooted, is k."""
    left, right, out = (math.prod(_known(shape)) for shape in (inputs[0], inputs[1], outputs[0]))
    return math.sqrt(left * right * out)


def _known(shape: Shape) -> Sequence[int]:
    if shape is None:
        raise ValueError("no shape")
    return shape


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "Conv": _times_filter(1),
        "ConvInteger": _times_filter(1),
        "QLinearConv": _times_filter(3),
        "ConvTranspose": _times_filter(1, per="0"),
        "com.microsoft:FusedConv": _times_filter(1),
        "Gemm": _general,
        "com.microsoft:FusedGemm": _general,
        "com.microsoft:QGemm": lambda inputs, outputs: _general((inputs[0], inputs[3]), outputs),
        "MatMul": _times_depth(0),
        "MatMulInteger": _times_depth(0),
        "QLinearMatMul": _times_depth(0),
        "com.microsoft:FusedMatMul": _times_depth(0),
        "com.microsoft:MatMulNBits": _times_depth(0),
        "CONV_2D": _times_filter(1),
        "CONV_3D": _times_filter(1, slice(None, -1)),
        "DEPTHWISE_CONV_2D": _times_filter(1, slice(1, 3)),
        "TRANSPOSE_CONV": _times_filter(1, slice(None, 3), per="2"),
        "FULLY_CONNECTED": _times_filter(1),
        "BATCH_MATMUL": _times_depth(0),
    }
)
"""By operator, as `Node.op` has it."""


def work_of(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape], read: Sequence[Shape]) -> float:
    """Multiply-adds of an operator with these `inputs`, weights among them.

    Of other operators the elements of the largest tensor that they make or `read`, weights apart. 0 where shapes are
    not known.
    """
    try:
        return float(_RULES[op](inputs, outputs))
    except (KeyError, IndexError, ValueError):
        return float(max((math.prod(one) for one in (*outputs, *read) if one is not None), default=0))
