"""Tensors and parameters in the protocol's messages. Any fault raises `InvalidRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.class_labels import read_classification
from upwell.shared.oip.codec.tensor_contents import (
    MAX_DIMENSIONS,
    MAX_MESSAGE_BYTES,
    decode_raw,
    decode_typed,
    encode_raw,
    refuse_dimensions,
    refuse_larger,
    refuse_unsupported,
)
from upwell.shared.oip.dataplane import Parameter
from upwell.shared.tensors import Array

M = TypeVar("M", bound=Message)


class TensorMessage(Protocol):
    """The common part of the messages' input and output tensors."""

    name: str
    datatype: str

    @property
    def shape(self) -> Sequence[int]:
        """All dimensions."""
        ...

    @property
    def parameters(self) -> Mapping[str, pb.InferParameter]:
        """Parameters by name."""
        ...

    @property
    def contents(self) -> pb.InferTensorContents:
        """Typed value lists."""
        ...

    def HasField(self, field_name: Literal["contents"]) -> bool:  # noqa: N802 (protobuf's name)
        """Whether it has typed value lists."""
        ...


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message of this type. Raises `InvalidRequest` if it is not one."""
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise InvalidRequest(f"the message cannot be read as a {name}: it is damaged or another message") from None


def read_tensors(kind: str, tensors: Sequence[TensorMessage], raws: Sequence[bytes | memoryview]) -> dict[str, Array]:
    """The tensors of a message by name; `raws` are their raw contents, empty if the tensors hold typed ones."""
    for tensor in tensors:  # first, since tensors in shared memory have no raw contents to count
        if tensor.parameters:
            refuse_unsupported(tensor.name, tensor.parameters)
    if raws and len(raws) != len(tensors):
        raise InvalidRequest(f"{len(tensors)} {kind} tensors need as many raw contents, got {len(raws)}")
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(tensors):
        name = tensor.name
        if name in arrays:
            raise InvalidRequest(f"the {kind} {name!r} is repeated")
        if len(tensor.shape) > MAX_DIMENSIONS:
            refuse_dimensions(name, len(tensor.shape))
        shape = tuple(tensor.shape)
        if not raws:
            arrays[name] = decode_typed(name, tensor.datatype, shape, _typed_fields(tensor))
        elif tensor.HasField("contents") and _typed_fields(tensor):
            raise InvalidRequest(f"tensor {name!r} has both typed and raw contents; send one of them")
        else:
            arrays[name] = decode_raw(name, tensor.datatype, shape, raws[index])
    return arrays


def _typed_fields(tensor: TensorMessage) -> dict[str, Sequence[Any]]:
    """The non-empty value lists of the tensor, by field name."""
    return {descriptor.name: values for descriptor, values in tensor.contents.ListFields()}


def read_wanted(outputs: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor]) -> tuple[str, ...]:
    """The names of the requested outputs."""
    wanted: dict[str, None] = {}
    for output in outputs:
        refuse_unsupported(output.name, output.parameters)
        if output.name in wanted:
            raise InvalidRequest(f"the requested output {output.name!r} is repeated")
        wanted[output.name] = None
    return tuple(wanted)


def read_classes(outputs: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor]) -> dict[str, int]:
    """The number of classes for each output that is to be classified."""
    counts = {one.name: read_classification(one.name, read_parameters(one.parameters)) for one in outputs}
    return {name: count for name, count in counts.items() if count}


def read_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    """The parameters of a message."""
    values: dict[str, Parameter] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"the parameter {key!r} has no value")
        values[key] = getattr(parameter, choice)
    return values


def write_parameters(target: Mapping[str, pb.InferParameter], parameters: Mapping[str, Parameter]) -> None:
    """Write parameters into a message. Raises `InvalidRequest` for numbers that do not fit."""
    for key, value in parameters.items():
        if isinstance(value, float):
            target[key].double_param = value
        elif isinstance(value, str):
            target[key].string_param = value
        elif isinstance(value, bool):
            target[key].bool_param = value
        elif -(2**63) <= value < 2**63:
            target[key].int64_param = value
        elif 0 <= value < 2**64:
            target[key].uint64_param = value
        else:
            raise InvalidRequest(f"the parameter {key!r} is {value}, which does not fit 64 bits")


def write_tensor(
    target: pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor, name: str, array: Array
) -> bytes | memoryview:
    """Fill in the tensor message except its raw contents, which are returned."""
    if array.nbytes > MAX_MESSAGE_BYTES:
        refuse_larger(f"tensor {name!r}", array.nbytes)
    datatype, raw = encode_raw(name, array)
    target.name = name
    target.datatype = datatype
    target.shape.extend(array.shape)
    return raw
