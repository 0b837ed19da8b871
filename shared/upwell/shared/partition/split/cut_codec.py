"""Sends float tensors across an ONNX cut in fewer bytes: encoded in the head's graph, decoded in the tail's.

- `fp16` halves the bytes: Cast there and back. Values above 65,504 become infinite.
- `int8` quarters them: QuantizeLinear to uint8 in the head, DequantizeLinear in the tail. Scale and zero point map the
range seen on samples, extended to include 0, to 0..255; values outside are clipped.

Only ordinary tensors are sent, so any server can run the tail. `upwell partition verify` measures the loss: the halves
together against the whole model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from upwell.shared.errors import ConfigError
from upwell.shared.partition.model_graph import Tensor
from upwell.shared.partition.onnx_proto import opset_of, with_bodies
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.onnx_halves import (
    ELEMENT_TYPES,
    MODEL_FILE,
    metadata,
    put_metadata,
    serialized,
    value_info,
)
from upwell.shared.tensors import Array

CutCodec = Literal["fp16", "int8"]

Ranges = Mapping[str, tuple[float, float]]
"""The smallest and largest sample value of each cut tensor."""

_CODED = "FP32"
_SENT_AS: Mapping[CutCodec, str] = {"fp16": "FP16", "int8": "UINT8"}
_LEAST_OPSET: Mapping[CutCodec, int] = {"fp16": 6, "int8": 10}
_LARGEST_FP16 = float(np.finfo(np.float16).max)
_LEVELS = 255


def with_codec(halves: Halves, codec: CutCodec, ranges: Ranges | None = None) -> Halves:
    """These ONNX halves with every FP32 cut tensor sent by `codec`, under a new name; all others cross unchanged.

    `int8` needs the range of each such tensor; for `fp16` given ranges are checked to fit. A model output that is also
    a cut tensor is still given unchanged. Raises `ConfigError` if nothing can be encoded.
    """
    head, tail = (onnx.ModelProto.FromString(half.files[MODEL_FILE]) for half in (halves.head, halves.tail))
    known = {tensor.name: tensor for tensor in halves.head.outputs}
    taken = _names(head) | _names(tail)
    coded = {
        name: _Coded.of(known[name], codec, ranges or {}, taken)
        for name in halves.cut
        if known[name].datatype == _CODED
    }
    if not coded:
        raise ConfigError.at(None, f"no tensor in this cut is {_CODED}, so there is nothing to encode")
    sent = {name: coded[name].sent if name in coded else known[name] for name in halves.cut}
    also_given = set(json.loads(metadata(head, "outputs") or "[]")).intersection(coded)
    given = [tensor for tensor in halves.head.outputs if tensor.name not in sent or tensor.name in also_given]
    outputs = (*sent.values(), *given)
    inputs = tuple(sent.get(tensor.name, tensor) for tensor in halves.tail.inputs)
    _declare(head.graph.output, halves.head.outputs, outputs)
    _declare(tail.graph.input, halves.tail.inputs, inputs)
    for model, side in ((head, "head"), (tail, "tail")):
        _check_opset(model, codec)
        _put_nodes(model, side, coded.values())
        put_metadata(model, {"codec": codec, "cut": json.dumps([tensor.name for tensor in sent.values()])})
    return Halves(
        _rewritten(halves.head, head, halves.head.inputs, outputs),
        _rewritten(halves.tail, tail, inputs, halves.tail.outputs),
        tuple(tensor.name for tensor in sent.values()),
    )


@dataclass(frozen=True)
class _Coded:
    """A cut tensor, its encoded tensor, and scale and zero point if it has them."""

    plain: Tensor
    sent: Tensor
    constants: tuple[onnx.TensorProto, ...]

    @classmethod
    def of(cls, plain: Tensor, codec: CutCodec, ranges: Ranges, taken: set[str]) -> _Coded:
        """`taken` are names in use in either graph."""
        name = f"{plain.name}_{codec}"
        while any(one.startswith(name) for one in taken):
            name += "_"
        constants: tuple[onnx.TensorProto, ...] = ()
        if codec == "int8":
            arrays = zip(("scale", "zero_point"), _parameters(plain.name, ranges), strict=True)
            constants = tuple(numpy_helper.from_array(array, f"{name}_{kind}") for kind, array in arrays)
        elif max(map(abs, ranges.get(plain.name, (0.0,)))) > _LARGEST_FP16:
            raise ConfigError.at(None, f"values of {plain.name!r} exceed {_LARGEST_FP16:.0f}, the largest FP16 number")
        return cls(plain, replace(plain, name=name, datatype=_SENT_AS[codec]), constants)

    def node(self, side: str) -> onnx.NodeProto:
        """The operator that encodes it in the head, or decodes it in the tail."""
        ends = (self.plain, self.sent) if side == "head" else (self.sent, self.plain)
        source, target = (tensor.name for tensor in ends)
        name = f"{self.sent.name}_{side}"
        if not self.constants:
            return helper.make_node("Cast", [source], [target], name=name, to=ELEMENT_TYPES[ends[1].datatype])
        operator = "QuantizeLinear" if side == "head" else "DequantizeLinear"
        return helper.make_node(operator, [source, *(one.name for one in self.constants)], [target], name=name)


def _parameters(name: str, ranges: Ranges) -> tuple[Array, Array]:
    """Scale, FP32, and zero point, UINT8: the range including 0 is mapped to 0..255, so that zeros stay zeros."""
    if name not in ranges:
        raise ConfigError.at(
            None, f"int8 needs the range of {name!r}; there are only samples of {sorted(ranges) or 'none'}"
        )
    low, high = ranges[name]
    if not -math.inf < low <= high < math.inf:
        raise ConfigError.at(None, f"the range of {name!r} is {low} to {high}; expected two numbers, the smaller first")
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(np.float32((high - low) / _LEVELS), np.finfo(np.float32).tiny)
    zero_point = np.clip(round(-low / float(scale)), 0, _LEVELS)
    return np.asarray(scale, np.float32), np.asarray(zero_point, np.uint8)


def _put_nodes(model: onnx.ModelProto, side: str, coded: Collection[_Coded]) -> None:
    """Put encoders last in the head, or decoders first in the tail."""
    graph = model.graph
    nodes = [one.node(side) for one in coded]
    ordered = [*graph.node, *nodes] if side == "head" else [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(ordered)
    graph.initializer.extend(constant for one in coded for constant in one.constants)
    known = {one.name for one in graph.value_info} | {one.name for one in graph.output}
    graph.value_info.extend(value_info(one.plain) for one in coded if one.plain.name not in known)


def _declare(ends: Any, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Change inputs or outputs of a graph; weights among its inputs stay, after the others."""
    declared = {one.name: one for one in ends}
    weights = declared.keys() - {tensor.name for tensor in before}
    made = [declared[one.name] if one.name in declared else value_info(one) for one in after]
    made += [one for name, one in declared.items() if name in weights]
    del ends[:]
    ends.extend(made)


def _check_opset(model: onnx.ModelProto, codec: CutCodec) -> None:
    version = opset_of(model)
    if version < _LEAST_OPSET[codec]:
        raise ConfigError.at(
            None, f"{codec} at the cut needs opset {_LEAST_OPSET[codec]} or later, but the model has opset {version}"
        )


def _names(model: onnx.ModelProto) -> set[str]:
    graph = model.graph
    nodes = {name for node in with_bodies(graph.node) for name in (node.name, *node.input, *node.output)}
    return nodes | {one.name for one in graph.initializer} | {one.name for one in graph.input}


def _rewritten(
    half: ModelHalf, model: onnx.ModelProto, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> ModelHalf:
    data = serialized(model, is_inline=len(half.files) == 1)
    return ModelHalf({**half.files, MODEL_FILE: data}, tuple(inputs), tuple(outputs))
