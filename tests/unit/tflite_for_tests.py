"""Small TFLite models for tests, written with the schema that ai_edge_litert carries; TensorFlow is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from tests.unit.weights_for_tests import linear_weights
from upwell.shared.tensors import Array

TFLITE_PACKAGES = ("ai_edge_litert", pytest.param("tflite_runtime", marks=pytest.mark.tflite_runtime))
"""Both packages that run TFLite models, to parametrize with; the second is in an environment of its own."""

_TYPES = {
    "FP32": schema.TensorType.FLOAT32,
    "FP16": schema.TensorType.FLOAT16,
    "FP64": schema.TensorType.FLOAT64,
    "BF16": schema.TensorType.BFLOAT16,
    "INT8": schema.TensorType.INT8,
    "INT16": schema.TensorType.INT16,
    "INT32": schema.TensorType.INT32,
    "INT64": schema.TensorType.INT64,
    "UINT8": schema.TensorType.UINT8,
    "UINT16": schema.TensorType.UINT16,
    "UINT32": schema.TensorType.UINT32,
    "UINT64": schema.TensorType.UINT64,
    "BOOL": schema.TensorType.BOOL,
    "BYTES": schema.TensorType.STRING,
    "COMPLEX64": schema.TensorType.COMPLEX64,
}


@dataclass(frozen=True)
class T:
    """One tensor of a model. -1 in `shape` varies; `data` makes it a constant."""

    name: str
    shape: tuple[int, ...]
    datatype: str = "FP32"
    data: Array | None = None
    quantization: tuple[float, int] | None = None


@dataclass(frozen=True)
class Op:
    """One operator: a builtin code, or a name for a custom operator; tensors by index; its options if it has any."""

    code: int | str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options_type: int = 0
    options: Any = None


def save(
    path: Path,
    tensors: Sequence[T],
    operators: Sequence[Op],
    inputs: Sequence[int],
    outputs: Sequence[int],
    signature: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
) -> Path:
    """Write a model with one subgraph, and with one signature where `signature` names inputs and outputs."""
    model = schema.ModelT()
    model.version = 3
    model.description = "made for a test"
    model.buffers = [schema.BufferT()]
    graph = schema.SubGraphT()
    graph.name = "main"
    graph.tensors = [_tensor(tensor, model.buffers) for tensor in tensors]
    graph.inputs, graph.outputs = list(inputs), list(outputs)
    model.operatorCodes = [_operator_code(operator.code) for operator in operators]
    graph.operators = [_operator(index, operator) for index, operator in enumerate(operators)]
    model.subgraphs = [graph]
    if signature is not None:
        model.signatureDefs = [_signature(*signature)]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def _tensor(tensor: T, buffers: list[Any]) -> Any:
    made = schema.TensorT()
    made.name, made.type, made.buffer = tensor.name, _TYPES[tensor.datatype], 0
    made.shape = [abs(size) for size in tensor.shape]
    if -1 in tensor.shape:
        made.shapeSignature = list(tensor.shape)
    if tensor.data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(tensor.data).tobytes(), np.uint8)
        buffers.append(buffer)
        made.buffer = len(buffers) - 1
    if tensor.quantization is not None:
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale, made.quantization.zeroPoint = [tensor.quantization[0]], [tensor.quantization[1]]
    return made


def _operator_code(code: int | str) -> Any:
    made = schema.OperatorCodeT()
    made.version = 1
    made.builtinCode = schema.BuiltinOperator.CUSTOM if isinstance(code, str) else code
    made.deprecatedBuiltinCode = min(made.builtinCode, 127)
    if isinstance(code, str):
        made.customCode = code
    return made


def _operator(index: int, operator: Op) -> Any:
    made = schema.OperatorT()
    made.opcodeIndex = index
    made.inputs, made.outputs = list(operator.inputs), list(operator.outputs)
    made.builtinOptionsType, made.builtinOptions = operator.options_type, operator.options
    return made


def _signature(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
    made = schema.SignatureDefT()
    made.signatureKey = "serving_default"
    made.subgraphIndex = 0
    made.inputs, made.outputs = _tensor_maps(inputs), _tensor_maps(outputs)
    return made


def _tensor_maps(names: Mapping[str, int]) -> list[Any]:
    maps = []
    for name, index in names.items():
        made = schema.TensorMapT()
        made.name, made.tensorIndex = name, index
        maps.append(made)
    return maps


def add(left: int, right: int, out: int) -> Op:
    """An ADD of two tensors."""
    return Op(schema.BuiltinOperator.ADD, (left, right), (out,), schema.BuiltinOptions.AddOptions, schema.AddOptionsT())


def mul(left: int, right: int, out: int) -> Op:
    """A MUL of two tensors."""
    return Op(schema.BuiltinOperator.MUL, (left, right), (out,), schema.BuiltinOptions.MulOptions, schema.MulOptionsT())


def linear(directory: Path, seed: int = 0, *, rows: int | None = None, features: int = 8, classes: int = 3) -> Path:
    """The same function and names (`x`, `scores`) as the ONNX model of that name; `rows` None varies."""
    weights, bias = linear_weights(seed, features, classes)
    leading = -1 if rows is None else rows
    options = schema.FullyConnectedOptionsT()
    operator = Op(
        schema.BuiltinOperator.FULLY_CONNECTED, (0, 1, 2), (3,), schema.BuiltinOptions.FullyConnectedOptions, options
    )
    tensors = [
        T("serving_default_x:0", (leading, features)),
        T("weights", (classes, features), data=weights.T),
        T("bias", (classes,), data=bias),
        T("StatefulPartitionedCall:0", (leading, classes)),
    ]
    path = directory / f"linear_{seed}_{leading}x{features}x{classes}.tflite"
    return save(path, tensors, [operator], [0], [3], ({"x": 0}, {"scores": 3}))


def two_in_two_out(directory: Path) -> Path:
    """`sum = a + b`, `product = a * b`, all FP32 [rows, 3], without a signature."""
    tensors = [T(name, (-1, 3)) for name in ("a", "b", "sum", "product")]
    return save(directory / "two_in_two_out.tflite", tensors, [add(0, 1, 2), mul(0, 1, 3)], [0, 1], [2, 3])


def identity(directory: Path, datatype: str = "FP32", shape: tuple[int, ...] = (2, 2)) -> Path:
    """`y = x` by a RESHAPE to the same fixed shape, which runs for any datatype."""
    options = schema.ReshapeOptionsT()
    options.newShape = list(shape)
    operator = Op(schema.BuiltinOperator.RESHAPE, (0, 1), (2,), schema.BuiltinOptions.ReshapeOptions, options)
    tensors = [
        T("x", shape, datatype),
        T("shape", (len(shape),), "INT32", np.array(shape, np.int32)),
        T("y", shape, datatype),
    ]
    return save(directory / f"identity_{datatype.lower()}.tflite", tensors, [operator], [0], [2])
