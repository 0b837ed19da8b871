"""Converts between serialized messages and the values of `dataplane`, for both sides and both directions.

A client that repeats requests sends the same description of its inputs each time, and receives the same description of
the outputs. Parsing one and serializing the other with the generated classes takes most of a small request's time.

Only this module, `tensor_messages` and `triton_messages` know the message types. Any fault in a message raises
`InvalidRequest`; whether that means a bad caller or a bad server is up to the servicer and the client.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import UpwellError
from upwell.shared.oip.codec.tensor_contents import (
    MAX_DIMENSIONS,
    MAX_ID_CHARACTERS,
    MAX_PLAIN_BYTES,
    MAX_UNUSUAL_BYTES,
    MIN_SPLIT_BYTES,
    PLAIN,
    SMALL_BYTES,
    Span,
    append_raw_contents,
    before_value,
    encode_raw,
    join,
    refuse_costly,
    refuse_larger,
    refuse_long_id,
    refuse_sequence,
    split_raw_contents,
    take_apart,
)
from upwell.shared.oip.codec.tensor_messages import (
    parse,
    read_classes,
    read_parameters,
    read_tensors,
    read_wanted,
    write_parameters,
    write_tensor,
)
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, Parameter, ServerMetadata
from upwell.shared.tensors import DTYPES, Array, TensorSpec, oip_datatype
from upwell.shared.value_classes import value_class

_REMEMBERED = 512
_ID = pb.ModelInferRequest.ID_FIELD_NUMBER
_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_OUTPUTS = pb.ModelInferResponse.OUTPUTS_FIELD_NUMBER
_DOUBLE = struct.Struct("<d")


@value_class
class _Input:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size_bytes: int


@value_class
class _Layout:
    """A request without its ID and raw contents. All inputs have raw contents, whose size follows from the shape."""

    model: str
    version: str
    inputs: tuple[_Input, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]


@value_class
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
    """Parse a `ModelInferRequest` as `parse_infer_request` does, or return None if it is not of the usual kind.

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
        elif type(value) is str and len(value) > MIN_SPLIT_BYTES:  # such as the routes of thousands of rows
            parts.append(_parameter.__wrapped__(key, value))
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


_STREAMED = stream_pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

FINAL = "triton_final_response"
"""Triton's parameter of an answer in a stream: whether it is the last for its request. Ours always is."""

STATUS = "upwell.status"
"""Upwell's parameter of an error in a stream: the name of the gRPC status, such as `RESOURCE_EXHAUSTED`."""

_FINAL = pb.ModelInferResponse(parameters={FINAL: pb.InferParameter(bool_param=True)}).SerializeToString()


def parse_infer_request(data: bytes) -> InferRequest:
    """Parse a `ModelInferRequest`. Large arrays are read-only views of its contents. Raises `InvalidRequest`."""
    cached = read_cached(data)
    return parse_unfamiliar_request(data) if cached is None else cached


def parse_unfamiliar_request(data: bytes) -> InferRequest:
    """The same for any request, with the generated classes and without the cache."""
    split = split_raw_contents(data, _RAW_INPUTS)
    description, views = split or (data, ())
    if len(description) > MAX_UNUSUAL_BYTES:
        refuse_costly("request", len(description), is_split=split is not None)
    message = parse(pb.ModelInferRequest, description)
    request_id = message.id
    refuse_long_id(request_id)
    parameters = read_parameters(message.parameters)
    refuse_sequence(parameters)
    return InferRequest(
        message.model_name,
        read_tensors("input", message.inputs, views or message.raw_input_contents),
        message.model_version,
        request_id,
        read_wanted(message.outputs),
        parameters,
        read_classes(message.outputs),
    )


def serialize_infer_request(request: InferRequest) -> bytes:
    """Serialize a `ModelInferRequest` with raw contents. Raises `InvalidRequest` for tensors the protocol cannot
    carry."""
    message = pb.ModelInferRequest(model_name=request.model, model_version=request.version, id=request.id)
    message.outputs.extend(pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in request.outputs)
    write_parameters(message.parameters, request.parameters)
    raws = [write_tensor(message.inputs.add(), name, array) for name, array in request.inputs.items()]
    return append_raw_contents(message.SerializeToString(), _RAW_INPUTS, raws)


def parse_infer_response(data: bytes) -> InferResponse:
    """Parse a `ModelInferResponse`, as strictly as a request. Raises `InvalidRequest`."""
    split = split_raw_contents(data, _RAW_OUTPUTS)
    description, views = split or (data, ())
    if len(description) > MAX_UNUSUAL_BYTES:
        # What an agent says of each of a million rows is long, but costs little.
        taken = None if split is None else take_apart(description, _OUTPUTS)
        size_bytes = len(description) if taken is None else sum(end - start for start, end in taken[2])
        refuse_costly("answer", size_bytes, is_split=taken is not None)
    message = parse(pb.ModelInferResponse, description)
    return InferResponse(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        outputs=read_tensors("output", message.outputs, views or message.raw_output_contents),
        parameters=read_parameters(message.parameters),
    )


def serialize_infer_response(response: InferResponse) -> bytes:
    """Serialize a `ModelInferResponse` with raw contents. Raises `InvalidRequest` as for a request."""
    return join(answer_parts(response))


def serialize_stream_response(response: InferResponse) -> bytes:
    """Serialize the only `ModelStreamInferResponse` to a request. Raises `InvalidRequest` as above."""
    return join([_FINAL, *answer_parts(response)], within=_STREAMED)


def serialize_stream_error(text: str, status: str, request: InferRequest | None) -> bytes:
    """Serialize the `ModelStreamInferResponse` for a failed request (None: it could not be read).

    `status` is the name of the gRPC status that the request would have had as a single call; Triton does not send it.
    """
    message = stream_pb.ModelStreamInferResponse(error_message=text)
    answer = message.infer_response
    if request is not None:
        answer.id, answer.model_name, answer.model_version = request.id, request.model, request.version
    write_parameters(answer.parameters, {FINAL: True, STATUS: status})
    return message.SerializeToString()


def parse_empty(data: bytes) -> None:
    """Parse a request without fields. Raises `InvalidRequest` if it is not a message."""
    parse(pb.ServerLiveRequest, data)


def parse_model_name(data: bytes) -> tuple[str, str]:
    """Parse model name and version of a `ModelReadyRequest` or `ModelMetadataRequest` (the same fields)."""
    message = parse(pb.ModelMetadataRequest, data)
    return message.name, message.version


def serialize_model_name(model: str, version: str) -> bytes:
    """Serialize a `ModelReadyRequest` or `ModelMetadataRequest`."""
    return pb.ModelMetadataRequest(name=model, version=version).SerializeToString()


def parse_flag(data: bytes) -> bool:
    """Parse a `ServerLiveResponse`, `ServerReadyResponse` or `ModelReadyResponse` (the same single field)."""
    return parse(pb.ServerReadyResponse, data).ready


def serialize_flag(flag: bool) -> bytes:
    """Serialize a `ServerLiveResponse`, `ServerReadyResponse` or `ModelReadyResponse`."""
    return pb.ServerReadyResponse(ready=flag).SerializeToString()


def parse_server_metadata(data: bytes) -> ServerMetadata:
    """Parse a `ServerMetadataResponse`."""
    message = parse(pb.ServerMetadataResponse, data)
    return ServerMetadata(message.name, message.version, tuple(message.extensions))


def serialize_server_metadata(metadata: ServerMetadata) -> bytes:
    """Serialize a `ServerMetadataResponse`."""
    message = pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)
    return message.SerializeToString()


def parse_model_metadata(data: bytes) -> ModelMetadata:
    """Parse a `ModelMetadataResponse`. Datatypes are kept as the server names them."""
    message = parse(pb.ModelMetadataResponse, data)
    inputs, outputs = (
        tuple(TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
        for tensors in (message.inputs, message.outputs)
    )
    return ModelMetadata(message.name, tuple(message.versions), message.platform, inputs, outputs)


def serialize_model_metadata(metadata: ModelMetadata) -> bytes:
    """Serialize a `ModelMetadataResponse`."""
    inputs, outputs = (
        [pb.ModelMetadataResponse.TensorMetadata(name=s.name, datatype=s.datatype, shape=s.shape) for s in specs]
        for specs in (metadata.inputs, metadata.outputs)
    )
    message = pb.ModelMetadataResponse(
        name=metadata.name, versions=metadata.versions, platform=metadata.platform, inputs=inputs, outputs=outputs
    )
    return message.SerializeToString()
