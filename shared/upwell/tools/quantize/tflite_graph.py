"""A TFLite model made ready to be quantized: checked, its tensors with names of their own, with one signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema

from upwell.shared.errors import ConfigError
from upwell.tools.quantize.base import FloatModel, LayerNode

_IDENTIFIER = b"TFL3"
_NAMES = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}


@dataclass(frozen=True)
class FloatGraph:
    """The file as quantizing takes it, the key of its signature, and its nodes in order.

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
    """The float model. Raises `ConfigError` where it cannot be quantized at all."""
    try:
        made = schema.ModelT.InitFromPackedBuf(model.path.read_bytes(), 0)
        return _graph(model, made)
    except (IndexError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError.at(model.path, f"the model file cannot be read: {error}") from None


def _graph(model: FloatModel, made: Any) -> FloatGraph:
    main = made.subgraphs[0]
    _check_float(model, made)
    _name_tensors(made)
    signature = _with_signature(model, made)
    constants = {index for index, tensor in enumerate(main.tensors) if _holds_data(made, tensor)}

    def names(indexes: Any) -> list[str]:
        values = [int(index) for index in indexes if index >= 0 and int(index) not in constants]
        return [main.tensors[index].name.decode() for index in values]

    codes = [_code(made.operatorCodes[operator.opcodeIndex]) for operator in main.operators]
    read = {int(index) for operator in main.operators for index in operator.inputs}
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), _IDENTIFIER)
    return FloatGraph(
        bytes(builder.Output()),
        signature,
        [
            LayerNode(f"{index} {_NAMES.get(code, 'CUSTOM')}", _NAMES.get(code, "CUSTOM"))
            for index, code in enumerate(codes)
        ],
        codes,
        [names(operator.inputs) for operator in main.operators],
        [names(operator.outputs) for operator in main.operators],
        names(index for index in main.outputs if int(index) in read),
    )


def _code(operator_code: Any) -> int:
    """Old files have the code in one field and new ones in both; the larger counts."""
    return max(int(operator_code.builtinCode), int(operator_code.deprecatedBuiltinCode))


def _check_float(model: FloatModel, made: Any) -> None:
    tensors = [tensor for graph in made.subgraphs for tensor in graph.tensors]
    if any(tensor.quantization is not None and tensor.quantization.scale is not None for tensor in tensors):
        raise ConfigError.at(model.path, "it is quantized already; expected a float model")
    if any(tensor.type == schema.TensorType.FLOAT16 and _holds_data(made, tensor) for tensor in tensors):
        raise ConfigError.at(model.path, "its weights are float16; expected float32")


def _holds_data(made: Any, tensor: Any) -> bool:
    buffer = made.buffers[tensor.buffer] if 0 < tensor.buffer < len(made.buffers) else None
    if buffer is None:
        return False
    return bool(buffer.size) or (buffer.data is not None and len(buffer.data) > 0)


def _name_tensors(made: Any) -> None:
    """Ranges are kept by name, so two values must not share one."""
    used: set[bytes] = set()
    taken = {tensor.name for graph in made.subgraphs for tensor in graph.tensors}
    for graph in made.subgraphs:
        for index, tensor in enumerate(graph.tensors):
            name = base = tensor.name or f"tensor_{index}".encode()
            count = 0
            while name in used or (name != tensor.name and name in taken):
                count += 1
                name = base + f"_{count}".encode()
            tensor.name = name
            used.add(name)


def _with_signature(model: FloatModel, made: Any) -> str:
    """The key of the model's only signature; a model without one gets one with the names that its callers use."""
    signatures = made.signatureDefs or []
    if len(signatures) > 1:
        keys = ", ".join(repr(one.signatureKey.decode()) for one in signatures)
        raise ConfigError.at(model.path, f"it has the signatures {keys}; expected a model with one")
    if not signatures:
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = b"serving_default", 0
        main = made.subgraphs[0]
        signature.inputs = _entries([spec.name for spec in model.inputs], main.inputs)
        signature.outputs = _entries([spec.name for spec in model.outputs], main.outputs)
        made.signatureDefs = signatures = [signature]
    (only,) = signatures
    for entries, specs in ((only.inputs, model.inputs), (only.outputs, model.outputs)):
        if {entry.name.decode() for entry in entries or []} != {spec.name for spec in specs}:
            raise ConfigError.at(model.path, "its signature does not name all its inputs and outputs")
    key: str = only.signatureKey.decode() if only.signatureKey else ""
    return key


def _entries(names: Sequence[str], indexes: Sequence[int]) -> list[Any]:
    entries = []
    for name, index in zip(names, indexes, strict=True):
        entry = schema.TensorMapT()
        entry.name, entry.tensorIndex = name.encode(), int(index)
        entries.append(entry)
    return entries
