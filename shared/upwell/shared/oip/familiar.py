"""Messages like those before: what they say beside ids, numbers and tensor contents is read and written once only.

A client that asks again and again sends the same description of its inputs each time, and gets the same description
of the outputs. The generated classes take most of the time of a small request to read the one and write the other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.contents import MAX_DIMENSIONS, PLAIN, encode_raw, refuse_long_id
from upwell.shared.oip.dataplane import InferRequest, InferResponse, Parameter
from upwell.shared.oip.messages import parse, read_parameters, read_wanted, write_parameters
from upwell.shared.oip.wire import MAX_MESSAGE_BYTES, fields_of, refuse_larger, take_apart
from upwell.shared.tensors import Array

_REMEMBERED = 512
_ID = pb.ModelInferRequest.ID_FIELD_NUMBER
_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_DOUBLE = struct.Struct("<d")
_SMALL_BYTES = 4096
"""Up to this size a copy, which is aligned, costs less than a look whether a view would be."""


@dataclass(frozen=True)
class _Input:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class _Layout:
    """What a request says beside its id and raw contents. All inputs have such, of a size that their shape says."""

    model: str
    version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]


def read_familiar(data: bytes) -> InferRequest | None:
    """Read a `ModelInferRequest` as `converters.parse_infer_request` does, or None where it is not of the usual kind.

    Raises `InvalidRequest` for an id that is too long.
    """
    taken = take_apart(data, _ID, _RAW_INPUTS)
    if taken is None:
        return None
    description, name, raws = taken
    layout = _layout(description)
    if layout is None or len(raws) != len(layout.inputs):
        return None
    inputs: dict[str, Array] = {}
    for one, (start, end) in zip(layout.inputs, raws, strict=True):
        if end - start != one.size_bytes:
            return None
        if one.size_bytes <= _SMALL_BYTES:
            inputs[one.name] = np.ndarray(one.shape, one.dtype, data[start:end])
        else:
            array: Array = np.ndarray(one.shape, one.dtype, data, start)
            # Runtimes take the address as it is, and not every processor reads from an odd one.
            inputs[one.name] = array if array.flags.aligned else array.copy()
    try:
        request_id = name.decode()
    except UnicodeDecodeError:
        return None
    refuse_long_id(request_id)
    return InferRequest(layout.model, inputs, layout.version, request_id, layout.outputs, layout.parameters)


@lru_cache(_REMEMBERED)
def _layout(description: bytes) -> _Layout | None:
    """None for what cannot be read, or holds other tensors than those of plain numbers in raw contents."""
    inputs: dict[str, _Input] = {}
    try:
        message = parse(pb.ModelInferRequest, description)
        for tensor in message.inputs:
            name, shape, dtype = tensor.name, tuple(tensor.shape), PLAIN.get(tensor.datatype)
            if dtype is None or tensor.parameters or tensor.HasField("contents") or name in inputs:
                return None
            if len(shape) > MAX_DIMENSIONS or min(shape, default=1) < 1:
                return None
            inputs[name] = _Input(name, dtype, shape, prod(shape) * dtype.itemsize)
        wanted, parameters = read_wanted(message.outputs), MappingProxyType(read_parameters(message.parameters))
    except InvalidRequest:
        return None
    return _Layout(message.model_name, message.model_version, tuple(inputs.values()), wanted, parameters)


def answer_parts(response: InferResponse) -> list[bytes | memoryview]:
    """The parts of a `ModelInferResponse`. Raises `InvalidRequest` for tensors the protocol cannot carry."""
    parts: list[bytes | memoryview] = [_head(response.model, response.version)]
    if response.id:
        parts += fields_of(_ID, (response.id.encode(),))
    for key, value in response.parameters.items():
        if type(value) is float:
            parts += (_before_double(key), _DOUBLE.pack(value))
        else:
            parts.append(_parameter(key, value))
    raws = []
    for name, array in response.outputs.items():
        if array.nbytes > MAX_MESSAGE_BYTES:
            refuse_larger(f"tensor {name!r}", array.nbytes)
        datatype, raw = encode_raw(name, array)
        parts.append(_output(name, datatype, array.shape))
        raws.append(raw)
    parts += fields_of(_RAW_OUTPUTS, raws)
    return parts


@lru_cache(_REMEMBERED)
def _head(model: str, version: str) -> bytes:
    return pb.ModelInferResponse(model_name=model, model_version=version).SerializeToString()


@lru_cache(_REMEMBERED)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    message = pb.ModelInferResponse()
    message.outputs.add(name=name, datatype=datatype, shape=shape)
    return message.SerializeToString()


@lru_cache(_REMEMBERED, typed=True)  # for True is 1
def _parameter(key: str, value: Parameter) -> bytes:
    message = pb.ModelInferResponse()
    write_parameters(message.parameters, {key: value})
    return message.SerializeToString()


@lru_cache(_REMEMBERED)
def _before_double(key: str) -> bytes:
    """A parameter of that name but for its eight bytes of number, which come last."""
    return _parameter(key, 1.0)[: -_DOUBLE.size]
