"""A cache for repeated messages: all but IDs, numbers and tensor contents is parsed and serialized only once.

A client that repeats requests sends the same description of its inputs each time, and receives the same description of
the outputs. Parsing one and serializing the other with the generated classes takes most of a small request's time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import UpwellError
from upwell.shared.oip.codec.tensor_contents import (
    MAX_DIMENSIONS,
    MAX_ID_CHARACTERS,
    PLAIN,
    SMALL_BYTES,
    encode_raw,
    refuse_long_id,
    refuse_sequence,
)
from upwell.shared.oip.codec.tensor_messages import parse, read_parameters, read_wanted, write_parameters
from upwell.shared.oip.codec.wire import MAX_PLAIN_BYTES, Span, before_value, refuse_larger, take_apart
from upwell.shared.oip.dataplane import InferRequest, InferResponse, Parameter
from upwell.shared.tensors import DTYPES, Array, oip_datatype

_REMEMBERED = 512
_ID = pb.ModelInferRequest.ID_FIELD_NUMBER
_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_DOUBLE = struct.Struct("<d")


@dataclass(frozen=True)
class _Input:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class _Layout:
    """A request without its ID and raw contents. All inputs have raw contents, whose size follows from the shape."""

    model: str
    version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True)
class _Frame:
    """All bytes of a message but its ID and raw contents, and the positions of those.

    A message with the same bytes at the same positions, keys and lengths included, differs only in these values.
    """

    fixed: tuple[tuple[int, int, bytes], ...]
    id: Span
    raws: tuple[Span, ...]
    layout: _Layout

    @classmethod
    def of(cls, data: bytes, name: Span, raws: Sequence[Span], layout: _Layout) -> _Frame:
        """The frame of this message."""
        places = sorted((name, *raws))
        between = zip([0, *(end for _, end in places)], [*(start for start, _ in places), len(data)], strict=True)
        fixed = tuple((start, end, data[start:end]) for start, end in between if end > start)
        return cls(fixed, name, tuple(raws), layout)

    def fits(self, data: bytes) -> bool:
        """Whether a message of the same size has this frame."""
        for start, end, known in self.fixed:  # noqa: SIM110 (every request comes here)
            if data[start:end] != known:
                return False
        return True


_frames: dict[int, _Frame] = {}
"""The latest message of each size: repeated requests have equal sizes unless the length of their IDs changes."""


def read_cached(data: bytes) -> InferRequest | None:
    """Parse a `ModelInferRequest` as `converters.parse_infer_request` does, or return None if it is not of the usual
    kind.

    Raises `InvalidRequest` for an ID that is too long.
    """
    frame = _frames.get(len(data))
    if frame is None or not frame.fits(data):
        frame = _frame_of(data)
        if frame is None:
            return None
        if len(_frames) >= _REMEMBERED:
            _frames.clear()
        _frames[len(data)] = frame
    layout = frame.layout
    inputs: dict[str, Array] = {}
    for one, (start, end) in zip(layout.inputs, frame.raws, strict=True):
        if one.size_bytes <= SMALL_BYTES:  # a copy is aligned, and cheaper than checking a view
            inputs[one.name] = np.ndarray(one.shape, one.dtype, data[start:end])
        else:
            array: Array = np.ndarray(one.shape, one.dtype, data, start)
            # Runtimes use the address as it is, and not every processor can read from an unaligned one.
            inputs[one.name] = array if array.flags.aligned else array.copy()
    start, end = frame.id
    try:
        request_id = data[start:end].decode()
    except UnicodeDecodeError:
        return None
    if end - start > MAX_ID_CHARACTERS:
        refuse_long_id(request_id)
    return InferRequest(layout.model, inputs, layout.version, request_id, layout.outputs, layout.parameters)


def _frame_of(data: bytes) -> _Frame | None:
    taken = take_apart(data, _RAW_INPUTS, _ID)
    if taken is None:
        return None
    description, name, raws = taken
    layout = _layout(description) if len(description) <= MAX_PLAIN_BYTES else None
    if layout is None or [end - start for start, end in raws] != [one.size_bytes for one in layout.inputs]:
        return None
    return _Frame.of(data, name, raws, layout)


@lru_cache(_REMEMBERED)
def _layout(description: bytes) -> _Layout | None:
    """None for what cannot be parsed, or has tensors other than plain numbers in raw contents."""
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
        refuse_sequence(parameters)
    except UpwellError:
        return None
    if any(output.parameters for output in message.outputs):
        return None
    return _Layout(message.model_name, message.model_version, tuple(inputs.values()), wanted, parameters)


def answer_parts(response: InferResponse) -> list[bytes | memoryview]:
    """The parts of a `ModelInferResponse`. Raises `InvalidRequest` for tensors the protocol cannot carry."""
    outputs = response.outputs
    described = tuple([(name, array.dtype, array.shape) for name, array in outputs.items()])
    head, before_raws = _described(response.model, response.version, described)
    parts: list[bytes | memoryview] = [head]
    if response.id:
        name = response.id.encode()
        parts += (before_value(_ID, len(name)), name)
    for key, value in response.parameters.items():
        if type(value) is float:
            parts += (_before_double(key), _DOUBLE.pack(value))
        else:
            parts.append(_parameter(key, value))
    for (output, array), before in zip(outputs.items(), before_raws, strict=True):
        if before and array.nbytes <= SMALL_BYTES:
            parts += (before, array.tobytes())
        else:
            _, raw = encode_raw(output, array)
            parts += (before_value(_RAW_OUTPUTS, len(raw)), raw)
    return parts


@lru_cache(_REMEMBERED)
def _described(
    model: str, version: str, outputs: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
) -> tuple[bytes, tuple[bytes, ...]]:
    """The bytes of an answer before its ID, and those before the contents of each output.

    The latter are empty if the contents are not the array's own bytes.
    """
    message = pb.ModelInferResponse(model_name=model, model_version=version)
    before_raws = []
    for name, dtype, shape in outputs:
        datatype = oip_datatype(dtype)
        is_plain = datatype != "BYTES" and dtype == DTYPES[datatype]
        size_bytes = prod(shape) * dtype.itemsize
        refuse_larger(f"tensor {name!r}", size_bytes)
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        before_raws.append(before_value(_RAW_OUTPUTS, size_bytes) if is_plain else b"")
    return message.SerializeToString(), tuple(before_raws)


@lru_cache(_REMEMBERED, typed=True)  # since True == 1
def _parameter(key: str, value: Parameter) -> bytes:
    message = pb.ModelInferResponse()
    write_parameters(message.parameters, {key: value})
    return message.SerializeToString()


@lru_cache(_REMEMBERED)
def _before_double(key: str) -> bytes:
    """A double parameter of that name, up to its eight bytes, which come last."""
    return _parameter(key, 1.0)[: -_DOUBLE.size]
