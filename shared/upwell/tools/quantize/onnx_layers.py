"""The error of each node of an int8 ONNX model, from the values between its nodes and those of the float model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from upwell.shared.tensors import Array
from upwell.tools.quantize.base import Arithmetic, Feed, Layer, added_error
from upwell.tools.quantize.compare import ErrorSummary
from upwell.tools.quantize.onnx_graph import exposing, float_tensors, float_weights, session_of

_SUFFIX = "_QuantizeLinear_Input"
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class _Rounded:
    """A quantized value: the tensor of integers that holds it, its scale and zero point."""

    integers: str
    scale: Array
    zero_point: Array

    def real(self, integers: Array) -> Array:
        """What the integers stand for."""
        real: Array = (integers.astype(np.float32) - self.zero_point.astype(np.float32)) * self.scale
        return real


@dataclass
class _Graphs:
    """How the values of the int8 graph correspond to those of the float graph.

    `pairs` gives for each value of the float graph where the int8 graph has it: rounded, or as it is by its name.
    """

    before: onnx.ModelProto
    after: onnx.ModelProto
    pairs: dict[str, _Rounded | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        constants = {one.name: one for one in self.after.graph.initializer}
        floats = float_tensors(self.before)
        present = {node.name for node in self.after.graph.node}
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.before.graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        for node in self.after.graph.node:
            if node.op_type == _Q and node.input[0] not in constants:
                value = _followed(node.input[0].removesuffix(_SUFFIX), readers, present)
                scale, zero_point = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
                if value in floats:
                    self.pairs[value] = _Rounded(node.output[0], scale, zero_point)
        made = {name for node in self.after.graph.node for name in node.output if node.op_type not in (_Q, _DQ)}
        for name in floats & made:
            self.pairs.setdefault(name, name)


def layers_of(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Iterable[Feed], arithmetic: Arithmetic
) -> list[Layer]:
    """A layer for each node that both graphs have, in their order, measured on `feeds`.

    The integers of the int8 model are read where they are made, so that its nodes stay fused as they are without.
    """
    graphs = _Graphs(before, after)
    errors = _measured(graphs, feeds, arithmetic)
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
    """The value whose range a rounding has: an activation such as Relu that is gone is done by the rounding itself."""
    while len(readers.get(name, [])) == 1 and readers[name][0].name not in present:
        name = readers[name][0].output[0]
    return name


def _absorbed(node: onnx.NodeProto, before: onnx.ModelProto, present: set[str]) -> set[str]:
    """The results of the nodes behind this one that are gone, so that this one computes them."""
    reached = set(node.output)
    found: set[str] = set()
    for other in before.graph.node:
        if other.name not in present and reached & set(other.input):
            found |= set(other.output)
            reached |= set(other.output)
    return found


def _measured(graphs: _Graphs, feeds: Iterable[Feed], arithmetic: Arithmetic) -> dict[str, float]:
    """The relative error of each value that both graphs have."""
    names = list(graphs.pairs)
    if not names:
        return {}
    before = session_of(exposing(graphs.before, [(name, TensorProto.FLOAT) for name in names]))
    wanted: dict[str, int] = {}
    types = {one.name: one.data_type for one in graphs.after.graph.initializer}
    zero_points = {node.output[0]: types[node.input[2]] for node in graphs.after.graph.node if node.op_type == _Q}
    for pair in graphs.pairs.values():
        if isinstance(pair, str):
            wanted[pair] = TensorProto.FLOAT
        else:
            wanted[pair.integers] = zero_points[pair.integers]
    after = session_of(exposing(graphs.after, list(wanted.items())), arithmetic)
    differences = {name: ErrorSummary() for name in names}
    for feed in feeds:
        expected = dict(zip(names, before.run(names, dict(feed)), strict=True))
        got = dict(zip(wanted, after.run(list(wanted), dict(feed)), strict=True))
        for name, pair in graphs.pairs.items():
            value = got[pair] if isinstance(pair, str) else pair.real(got[pair.integers])
            differences[name].add(expected[name], value)
    return {name: one.relative for name, one in differences.items()}
