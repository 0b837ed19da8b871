"""A half as an ONNX file: its metadata and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from onnx import TensorProto, helper

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph import Tensor
from upwell.shared.partition.onnx_proto import held_tensors

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"

ELEMENT_TYPES: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": TensorProto.BOOL,
        "UINT8": TensorProto.UINT8,
        "UINT16": TensorProto.UINT16,
        "UINT32": TensorProto.UINT32,
        "UINT64": TensorProto.UINT64,
        "INT8": TensorProto.INT8,
        "INT16": TensorProto.INT16,
        "INT32": TensorProto.INT32,
        "INT64": TensorProto.INT64,
        "FP16": TensorProto.FLOAT16,
        "BF16": TensorProto.BFLOAT16,
        "FP32": TensorProto.FLOAT,
        "FP64": TensorProto.DOUBLE,
    }
)
"""Maps OIP datatypes that can cross a cut to ONNX element types."""

_METADATA = "upwell.split."
_MOST_INLINE_BYTES = 1 << 30
"""Maximum size of weights in the message, since protobuf's limit is 2 GiB; larger ones are stored beside it."""

_LEAST_BESIDE_BYTES = 1024
"""Maximum size of tensors that stay in the model, such as shapes and scales, which shape inference reads."""

_ALIGNMENT_BYTES = 4096
"""Alignment of weights, which runtimes map into memory by page."""


def value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    """The declaration of an input or output that crosses a cut; open dimensions keep their names."""
    return helper.make_tensor_value_info(tensor.name, ELEMENT_TYPES[tensor.datatype], tensor.shape)


def put_metadata(model: onnx.ModelProto, facts: Mapping[str, str]) -> None:
    """Add facts about the split to a model's metadata, with the prefix `upwell.split.`; replaces those of the same
    name."""
    kept = {one.key: one.value for one in model.metadata_props}
    helper.set_model_props(model, kept | {f"{_METADATA}{key}": value for key, value in facts.items()})


def metadata(model: onnx.ModelProto, key: str) -> str:
    """A fact written by `put_metadata`; "" if it is missing."""
    return next((one.value for one in model.metadata_props if one.key == f"{_METADATA}{key}"), "")


def files_of(model: onnx.ModelProto, most_inline_bytes: int = _MOST_INLINE_BYTES) -> dict[str, bytes]:
    """A model with its weights as files by name: large weights move to a second file if all together are too large.

    The model is changed. Raises `ConfigError` if it is not valid.
    """
    is_inline = sum(len(tensor.raw_data) for tensor in held_tensors(model)) <= most_inline_bytes
    beside = {} if is_inline else {WEIGHTS_FILE: _moved_out(model)}
    return {MODEL_FILE: serialized(model, is_inline), **beside}


def serialized(model: onnx.ModelProto, is_inline: bool = True) -> bytes:
    """The model's file, checked if it needs no other. Raises `ConfigError` if it is not valid."""
    try:
        data = bytes(model.SerializeToString())
        if is_inline:  # the checker looks for external files beside the model, which is not on disk yet
            onnx.checker.check_model(data)
    except Exception as error:  # noqa: BLE001  (protobuf's and the checker's errors share no base class)
        raise ConfigError.at(None, f"a half of it would not be a valid ONNX model: {error}") from None
    return data


def _moved_out(model: onnx.ModelProto) -> bytes:
    """Remove the large weights from a model; returns them concatenated."""
    parts: list[bytes] = []
    end = 0
    for tensor in held_tensors(model):
        size = len(tensor.raw_data)
        if size < _LEAST_BESIDE_BYTES:
            continue
        gap = -end % _ALIGNMENT_BYTES
        parts += [bytes(gap), tensor.raw_data]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", end + gap), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        end += gap + size
    return b"".join(parts)
