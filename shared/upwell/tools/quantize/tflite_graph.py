"""Prepares a TFLite model for quantization: checks it, names its tensors, and gives it one signature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from upwell.shared.errors import ConfigError
from upwell.shared.formats.operator_work import Shape, work_of
from upwell.shared.formats.tflite import BadTfliteFile, TfliteSubgraph, read_model
from upwell.shared.partition.read_tflite import OPERATORS
from upwell.shared.partition.split.tflite_halves import flatbuffer_of, signature_of
from upwell.tools.quantize.quantizer import FloatModel, LayerNode, own_names

_WEIGHTED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"})


@dataclass(frozen=True)
class FloatGraph:
    """The file to quantize, the key of its signature, and its nodes in order.

    `inputs` and `outputs` are, for each node, the names of the values that it reads and makes, without weights;
    `read_outputs` are outputs of the model that a node reads.
    """

    content: bytes
    signature: str
    nodes: Sequence[LayerNode]
    codes: Sequence[int]
    inputs: Sequence[Sequence[str]]
    outputs: Sequence[Sequence[str]]
    read_outputs: Sequence[str]


def read_graph(model: FloatModel) -> FloatGraph:
    """The float model. Raises `ConfigError` if it cannot be quantized at all."""
    data = model.path.read_bytes()
    try:
        return _graph(model, read_model(data)[0], schema.ModelT.InitFromPackedBuf(data, 0))
    except (BadTfliteFile, IndexError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError.at(model.path, f"the model file cannot be read: {error}") from None


def _graph(model: FloatModel, main: TfliteSubgraph, made: Any) -> FloatGraph:
    _check_float(model, made)
    _name_tensors(made)
    signature = _with_signature(model, made)
    tensors = made.subgraphs[0].tensors
    constants = {index for index, tensor in enumerate(tensors) if _holds_data(made, tensor)}

    def names(indexes: Iterable[int]) -> list[str]:
        return [tensors[index].name for index in indexes if index >= 0 and index not in constants]

    def shapes(indexes: Iterable[int]) -> list[Shape]:
        return [None if index < 0 else tuple(map(int, tensors[index].shape)) for index in indexes]

    def node(name: str, operator: str, inputs: Sequence[int], outputs: Sequence[int]) -> LayerNode:
        plain = LayerNode(name, operator, tuple(names(inputs)), tuple(names(outputs)))
        if operator not in _WEIGHTED:
            return plain
        weights = sum(math.prod(shape or ()) for shape in shapes(index for index in inputs if index in constants))
        work = work_of(operator, shapes(inputs), shapes(outputs), ())
        return replace(plain, weights=weights, work=0.0 if math.isnan(work) else work)

    codes = [operator.code for operator in main.operators]
    read = {index for operator in main.operators for index in operator.inputs}
    operators = [OPERATORS.get(code, "CUSTOM") for code in codes]
    return FloatGraph(
        flatbuffer_of(made),
        signature,
        [
            node(f"{index} {name}", name, one.inputs, one.outputs)
            for index, (name, one) in enumerate(zip(operators, main.operators, strict=True))
        ],
        codes,
        [names(operator.inputs) for operator in main.operators],
        [names(operator.outputs) for operator in main.operators],
        names(index for index in main.outputs if index in read),
    )


def _check_float(model: FloatModel, made: Any) -> None:
    tensors = [tensor for graph in made.subgraphs for tensor in graph.tensors]
    if any(tensor.quantization is not None and tensor.quantization.scale is not None for tensor in tensors):
        raise ConfigError.at(model.path, "it is already quantized; expected a float model")
    if any(tensor.type == schema.TensorType.FLOAT16 and _holds_data(made, tensor) for tensor in tensors):
        raise ConfigError.at(model.path, "its weights are float16; expected float32")


def _holds_data(made: Any, tensor: Any) -> bool:
    buffer = made.buffers[tensor.buffer] if 0 < tensor.buffer < len(made.buffers) else None
    if buffer is None:
        return False
    return bool(buffer.size) or (buffer.data is not None and len(buffer.data) > 0)


def _name_tensors(made: Any) -> None:
    """Make names unique: ranges are stored by name, so two values must not share one."""
    tensors = [(index, tensor) for graph in made.subgraphs for index, tensor in enumerate(graph.tensors)]
    given = [(tensor.name or b"").decode() for _, tensor in tensors]
    for (_, tensor), name in zip(tensors, own_names(given, [f"tensor_{index}" for index, _ in tensors]), strict=True):
        tensor.name = name


def _with_signature(model: FloatModel, made: Any) -> str:
    """The key of the model's only signature; a model without one gets one with the names that callers use."""
    signatures = made.signatureDefs or []
    if len(signatures) > 1:
        keys = ", ".join(repr(one.signatureKey.decode()) for one in signatures)
        raise ConfigError.at(model.path, f"it has the signatures {keys}; expected a model with one")
    if not signatures:
        main = made.subgraphs[0]
        inputs, outputs = (
            [(spec.name, int(index)) for spec, index in zip(specs, indexes, strict=True)]
            for specs, indexes in ((model.inputs, main.inputs), (model.outputs, main.outputs))
        )
        made.signatureDefs = [signature_of("serving_default", inputs, outputs)]
        return "serving_default"
    (only,) = signatures
    for entries, specs in ((only.inputs, model.inputs), (only.outputs, model.outputs)):
        if {entry.name.decode() for entry in entries or []} != {spec.name for spec in specs}:
            raise ConfigError.at(model.path, "its signature does not name all its inputs and outputs")
    key: str = only.signatureKey.decode() if only.signatureKey else ""
    return key
