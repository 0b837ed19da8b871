"""The error of each node of an int8 ONNX model, measured between its values and those of the float model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from upwell.shared.tensors import Array
from upwell.tools.quantize.onnx_graph import exposing, float_tensors, float_weights, session_of
from upwell.tools.quantize.quantization_error import ErrorSummary
from upwell.tools.quantize.quantizer import Arithmetic, Feed, Layer, added_error

_SUFFIX = "_QuantizeLinear_Input"
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class _Rounded:
    """A quantized value: the integer tensor that holds it, its scale and zero point."""

    integers: str
    scale: Array
    zero_point: Array

    @property
    def datatype(self) -> int:
        """ONNX's datatype of the integers."""
        return int(helper.np_dtype_to_tensor_dtype(self.zero_point.dtype))

    def real(self, integers: Array) -> Array:
        """The real numbers that the integers represent."""
        real: Array = (integers.astype(np.float32) - self.zero_point.astype(np.float32)) * self.scale
        return real


def _paired(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, _Rounded | str]:
    """Where the int8 graph has each value of the float graph: rounded, or unchanged by its name."""
    pairs: dict[str, _Rounded | str] = {}
    constants = {one.name: one for one in after.graph.initializer}
    floats = float_tensors(before)
    present = {node.name for node in after.graph.node}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in before.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in after.graph.node:
        if node.op_type == _Q and node.input[0] not in constants:
            value = _followed(node.input[0].removesuffix(_SUFFIX), readers, present)
            scale, zero_point = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
            if value in floats:
                pairs[value] = _Rounded(node.output[0], scale, zero_point)
    made = {name for node in after.graph.node for name in node.output if node.op_type not in (_Q, _DQ)}
    return {name: name for name in floats & made} | pairs


def layers_of(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Iterable[Feed], arithmetic: Arithmetic
) -> list[Layer]:
    """A layer for each node that both graphs have, in order, measured on `feeds`.

    The integers of the int8 model are read where they are made, so that its nodes are fused as usual.
    """
    errors = _measured(before, after, feeds, arithmetic)
    dequantized = {node.output[0] for node in after.graph.node if node.op_type == _DQ}
    real = dequantized | float_tensors(before) | float_weights(after)
    inputs = {node.name: list(node.input) for node in after.graph.node if node.op_type not in (_Q, _DQ)}
    layers = []
    for node in before.graph.node:
        if node.name not in inputs:
            continue
        values = [errors[name] for name in node.output if name in errors]
        through = [error for name, error in errors.items() if name in _absorbed(node, before, set(inputs))]
        error = max([*through, *values], default=math.nan) if not through else max(through)
        earlier = [errors[name] for name in node.input if name in errors]
        read = real.intersection(inputs[node.name])
        layers.append(
            Layer(
                node.name,
                node.op_type,
                "int8" if read and read <= dequantized else "float",
                error,
                math.nan if math.isnan(error) else added_error(error, earlier),
            )
        )
    return layers


def _followed(name: str, readers: Mapping[str, list[onnx.NodeProto]], present: set[str]) -> str:
    """The value whose range a rounding has: a removed activation such as Relu is done by the rounding itself."""
    while len(readers.get(name, [])) == 1 and readers[name][0].name not in present:
        name = readers[name][0].output[0]
    return name


def _absorbed(node: onnx.NodeProto, before: onnx.ModelProto, present: set[str]) -> set[str]:
    """The results of removed nodes after this one, which this one now computes."""
    reached = set(node.output)
    found: set[str] = set()
    for other in before.graph.node:
        if other.name not in present and reached & set(other.input):
            found |= set(other.output)
            reached |= set(other.output)
    return found


def _measured(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Iterable[Feed], arithmetic: Arithmetic
) -> dict[str, float]:
    """The relative error of each value that both graphs have."""
    pairs = _paired(before, after)
    names = list(pairs)
    if not names:
        return {}
    plain = session_of(exposing(before, [(name, TensorProto.FLOAT) for name in names]))
    wanted = {
        pair if isinstance(pair, str) else pair.integers: TensorProto.FLOAT if isinstance(pair, str) else pair.datatype
        for pair in pairs.values()
    }
    rounded = session_of(exposing(after, wanted.items()), arithmetic)
    differences = {name: ErrorSummary() for name in names}
    for feed in feeds:
        expected = dict(zip(names, plain.run(names, dict(feed)), strict=True))
        got = dict(zip(wanted, rounded.run(list(wanted), dict(feed)), strict=True))
        for name, pair in pairs.items():
            value = got[pair] if isinstance(pair, str) else pair.real(got[pair.integers])
            differences[name].add(expected[name], value)
    return {name: one.relative for name, one in differences.items()}
