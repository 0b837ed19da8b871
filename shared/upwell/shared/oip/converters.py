"""Between the protocol's messages, as serialized bytes, and the values of `dataplane`: both sides, both directions.

The only module that knows the message types. Whatever is wrong with a message raises `InvalidRequest`; what
that means (a bad caller, a garbling server) is for the servicer and the client to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.contents import decode_raw, decode_typed, encode_raw
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, Parameter, ServerMetadata
from upwell.shared.oip.wire import append_raw_contents, refuse_larger, split_raw_contents
from upwell.shared.tensors import Array, TensorSpec

# Asking for these and getting a plain answer would be a wrong answer, so they are refused rather than ignored.
_UNSUPPORTED_PARAMETERS = frozenset({"shared_memory_region", "classification"})

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER

M = TypeVar("M", bound=Message)


class _TensorMessage(Protocol):
    """What the input and output tensor messages have in common."""

    name: str
    datatype: str

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def parameters(self) -> Mapping[str, pb.InferParameter]: ...
    @property
    def contents(self) -> pb.InferTensorContents: ...
    def HasField(self, field_name: Literal["contents"]) -> bool: ...  # noqa: N802 (protobuf's name)


def parse_infer_request(data: bytes) -> InferRequest:
    """Read a `ModelInferRequest`. Numeric arrays are read-only views. Raises `InvalidRequest`."""
    description, views = split_raw_contents(data, _RAW_INPUTS) or (data, ())
    message = _parse(pb.ModelInferRequest, description)
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        inputs=_read_tensors("input", message.inputs, views or message.raw_input_contents),
        outputs=_read_wanted(message.outputs),
        parameters=_read_parameters(message.parameters),
    )


def serialize_infer_request(request: InferRequest) -> bytes:
    """Write a `ModelInferRequest` with raw contents. Raises `InvalidRequest` for tensors the protocol cannot carry."""
    message = pb.ModelInferRequest(model_name=request.model, model_version=request.version, id=request.id)
    message.outputs.extend(pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in request.outputs)
    _write_parameters(message.parameters, request.parameters)
    raws = [_write_tensor(message.inputs.add(), name, array) for name, array in request.inputs.items()]
    return append_raw_contents(message.SerializeToString(), _RAW_INPUTS, raws)


def parse_infer_response(data: bytes) -> InferResponse:
    """Read a `ModelInferResponse`, as strictly as a request. Raises `InvalidRequest`."""
    description, views = split_raw_contents(data, _RAW_OUTPUTS) or (data, ())
    message = _parse(pb.ModelInferResponse, description)
    return InferResponse(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        outputs=_read_tensors("output", message.outputs, views or message.raw_output_contents),
        parameters=_read_parameters(message.parameters),
    )


def serialize_infer_response(response: InferResponse) -> bytes:
    """Write a `ModelInferResponse` with raw contents. Raises `InvalidRequest` as for a request."""
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    _write_parameters(message.parameters, response.parameters)
    raws = [_write_tensor(message.outputs.add(), name, array) for name, array in response.outputs.items()]
    return append_raw_contents(message.SerializeToString(), _RAW_OUTPUTS, raws)


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise InvalidRequest(f"the message cannot be read as a {name}: it is damaged or not one") from None


def _read_tensors(kind: str, tensors: Sequence[_TensorMessage], raws: Sequence[bytes | memoryview]) -> dict[str, Array]:
    if raws and len(raws) != len(tensors):
        raise InvalidRequest(f"{len(tensors)} {kind} tensors need as many raw contents, got {len(raws)}")
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(tensors):
        name = tensor.name
        if name in arrays:
            raise InvalidRequest(f"the {kind} {name!r} is given twice")
        _refuse_unsupported(name, tensor.parameters)
        shape = tuple(tensor.shape)
        if not raws:
            arrays[name] = decode_typed(name, tensor.datatype, shape, _typed_fields(tensor))
        elif tensor.HasField("contents") and _typed_fields(tensor):
            raise InvalidRequest(f"tensor {name!r} has typed contents beside raw ones; send one or the other")
        else:
            arrays[name] = decode_raw(name, tensor.datatype, shape, raws[index])
    return arrays


def _typed_fields(tensor: _TensorMessage) -> dict[str, Sequence[Any]]:
    """The value lists of the tensor that are not empty, by field name."""
    return {descriptor.name: values for descriptor, values in tensor.contents.ListFields()}


def _read_wanted(outputs: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor]) -> tuple[str, ...]:
    wanted: dict[str, None] = {}
    for output in outputs:
        _refuse_unsupported(output.name, output.parameters)
        if output.name in wanted:
            raise InvalidRequest(f"the requested output {output.name!r} is given twice")
        wanted[output.name] = None
    return tuple(wanted)


def _refuse_unsupported(name: str, parameters: Mapping[str, pb.InferParameter]) -> None:
    for key in parameters:
        if key in _UNSUPPORTED_PARAMETERS:
            raise InvalidRequest(f"tensor {name!r}: the parameter {key!r} is not supported here; send plain contents")


def _read_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    values: dict[str, Parameter] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"the parameter {key!r} has no value")
        values[key] = getattr(parameter, choice)
    return values


def _write_parameters(target: Mapping[str, pb.InferParameter], parameters: Mapping[str, Parameter]) -> None:
    for key, value in parameters.items():
        if isinstance(value, bool):
            target[key].bool_param = value
        elif isinstance(value, str):
            target[key].string_param = value
        elif isinstance(value, float):
            target[key].double_param = value
        elif -(2**63) <= value < 2**63:
            target[key].int64_param = value
        elif 0 <= value < 2**64:
            target[key].uint64_param = value
        else:
            raise InvalidRequest(f"the parameter {key!r} is {value}, which does not fit 64 bits")


def _write_tensor(
    target: pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor, name: str, array: Array
) -> bytes | memoryview:
    """Fill all of the tensor message but its contents, which are returned."""
    refuse_larger(f"tensor {name!r}", array.nbytes)
    datatype, raw = encode_raw(name, array)
    target.name = name
    target.datatype = datatype
    target.shape.extend(array.shape)
    return raw


def parse_empty(data: bytes) -> None:
    """Read a request without fields. Raises `InvalidRequest` where it is not a message at all."""
    _parse(pb.ServerLiveRequest, data)


def parse_model_name(data: bytes) -> tuple[str, str]:
    """Read model name and version of a `ModelReadyRequest` or `ModelMetadataRequest` (the same fields)."""
    message = _parse(pb.ModelMetadataRequest, data)
    return message.name, message.version


def serialize_model_name(model: str, version: str) -> bytes:
    """Write a `ModelReadyRequest` or `ModelMetadataRequest`."""
    return pb.ModelMetadataRequest(name=model, version=version).SerializeToString()


def parse_flag(data: bytes) -> bool:
    """Read a `ServerLiveResponse`, `ServerReadyResponse` or `ModelReadyResponse` (the same single field)."""
    return _parse(pb.ServerReadyResponse, data).ready


def serialize_flag(flag: bool) -> bytes:
    """Write a `ServerLiveResponse`, `ServerReadyResponse` or `ModelReadyResponse`."""
    return pb.ServerReadyResponse(ready=flag).SerializeToString()


def parse_server_metadata(data: bytes) -> ServerMetadata:
    """Read a `ServerMetadataResponse`."""
    message = _parse(pb.ServerMetadataResponse, data)
    return ServerMetadata(message.name, message.version, tuple(message.extensions))


def serialize_server_metadata(metadata: ServerMetadata) -> bytes:
    """Write a `ServerMetadataResponse`."""
    message = pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)
    return message.SerializeToString()


def parse_model_metadata(data: bytes) -> ModelMetadata:
    """Read a `ModelMetadataResponse`. Datatypes are kept as the server names them."""
    message = _parse(pb.ModelMetadataResponse, data)
    inputs, outputs = (
        tuple(TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
        for tensors in (message.inputs, message.outputs)
    )
    return ModelMetadata(message.name, tuple(message.versions), message.platform, inputs, outputs)


def serialize_model_metadata(metadata: ModelMetadata) -> bytes:
    """Write a `ModelMetadataResponse`."""
    inputs, outputs = (
        [pb.ModelMetadataResponse.TensorMetadata(name=s.name, datatype=s.datatype, shape=s.shape) for s in specs]
        for specs in (metadata.inputs, metadata.outputs)
    )
    message = pb.ModelMetadataResponse(
        name=metadata.name, versions=metadata.versions, platform=metadata.platform, inputs=inputs, outputs=outputs
    )
    return message.SerializeToString()
