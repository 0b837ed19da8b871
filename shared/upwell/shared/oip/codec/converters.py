"""Converts between serialized messages and the values of `dataplane`, for both sides and both directions.

Only this module, `tensor_messages` and `message_cache` know the message types. Any fault in a message raises
`InvalidRequest`; whether that means a bad caller or a bad server is up to the servicer and the client.
"""

from __future__ import annotations

from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.codec.message_cache import answer_parts, read_cached
from upwell.shared.oip.codec.tensor_contents import refuse_long_id, refuse_sequence
from upwell.shared.oip.codec.tensor_messages import (
    parse,
    read_classes,
    read_parameters,
    read_tensors,
    read_wanted,
    write_parameters,
    write_tensor,
)
from upwell.shared.oip.codec.wire import (
    MAX_UNUSUAL_BYTES,
    append_raw_contents,
    join,
    refuse_costly,
    split_raw_contents,
)
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.tensors import TensorSpec

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
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
        refuse_costly(description, is_split=split is not None)
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
    description, views = split_raw_contents(data, _RAW_OUTPUTS) or (data, ())
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
