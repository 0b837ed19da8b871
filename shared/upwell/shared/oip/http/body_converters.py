"""Converts between HTTP bodies and the values of `dataplane`, for both sides and both directions.

A body is one JSON object or, with Triton's binary extension, a JSON object followed by the raw contents of the tensors
with `binary_data_size`, in the order of the object. Source:
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/extension_binary_data.html
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.class_labels import read_classification
from upwell.shared.oip.codec.tensor_contents import (
    decode_raw,
    encode_raw,
    refuse_long_id,
    refuse_sequence,
    refuse_unsupported,
)
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, Parameter, ServerMetadata
from upwell.shared.oip.grpc.server.servicer import TIMEOUT, timeout_s
from upwell.shared.oip.http.json_tensors import NamedNumber, decode_json, was_too_large, write_values
from upwell.shared.oip.http.replies import write_json
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

MAX_JSON_BYTES = 8 << 20
"""Maximum size of JSON, which takes up to twenty times its size when parsed; larger tensors are sent as binary data."""

EXTENSIONS = ("binary_tensor_data",)
"""The extensions that this front end adds to the server's."""

_MAX_TENSORS = 256
_SHORT_BYTES = 1024
"""Size up to which JSON is read once and remembered."""
BINARY_SIZE = "binary_data_size"
"""The parameter of a tensor with binary data: its number of bytes."""
_BASE64 = "base64"
_MAX_ERROR_CHARACTERS = 1000


@dataclass(frozen=True)
class RequestedOutput:
    """Which outputs are returned as binary data: as `named` says, else `default`."""

    default: bool
    named: Mapping[str, bool]

    def is_binary(self, output: str) -> bool:
        """Whether that output is returned as binary data."""
        return self.named.get(output, self.default)


@dataclass(frozen=True)
class ReadRequest:
    """A parsed request, the form of its answer, and Triton's `timeout`, if given."""

    request: InferRequest
    wanted: RequestedOutput
    timeout_s: float | None = None


def parse_infer_request(model: str, version: str, head: memoryview, binary: memoryview) -> ReadRequest:
    """Read a request: `head` is the JSON object, `binary` what follows it. Raises `InvalidRequest`."""
    said = _parse_json_cached(bytes(head)) if len(head) <= _SHORT_BYTES else _parse_json(head)
    request = InferRequest(
        model=model,
        version=version,
        id=said.id,
        inputs=_with_contents("input", said.inputs, binary),
        outputs=tuple(said.wanted.named),
        parameters=said.parameters,
        classes=said.classes,
    )
    return ReadRequest(request, said.wanted, said.timeout_s)


@dataclass(frozen=True)
class _Tensor:
    """A tensor as JSON describes it: `size_bytes` of binary data, or None with its elements in `data`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size_bytes: int | None
    data: object
    is_base64: bool


@dataclass(frozen=True)
class _RequestJson:
    """What the JSON of a request says."""

    id: str
    inputs: Sequence[_Tensor]
    wanted: RequestedOutput
    classes: Mapping[str, int]
    parameters: Mapping[str, Parameter]
    timeout_s: float | None


def _parse_json(head: memoryview) -> _RequestJson:
    message = load_object(head)
    parameters = parameters_of("the request", message.get("parameters"))
    refuse_sequence(parameters)
    timeout = timeout_s(parameters.pop(TIMEOUT)) if TIMEOUT in parameters else None
    default = _flag("binary_data_output", parameters.pop("binary_data_output", False))
    named, classes = _outputs(message.get("outputs"), default)
    request_id = text_of("`id`", message.get("id", ""))
    refuse_long_id(request_id)
    inputs = _described("input", message.get("inputs"))
    return _RequestJson(request_id, inputs, RequestedOutput(default, named), classes, parameters, timeout)


@lru_cache(maxsize=256)
def _parse_json_cached(head: bytes) -> _RequestJson:
    """A client with binary data that asks again and again sends the same JSON each time."""
    return _parse_json(memoryview(head))


def load_object(head: memoryview) -> dict[str, Any]:
    """Parse a JSON object. Raises `InvalidRequest`."""
    if len(head) > MAX_JSON_BYTES:
        raise InvalidRequest(
            f"the JSON takes {len(head)} bytes; at most {MAX_JSON_BYTES} are allowed: send large tensors as binary data"
        )
    try:
        message = _DECODER.decode(bytes(head).decode())
    except UnicodeDecodeError:
        raise InvalidRequest("the JSON is not UTF-8 text") from None
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deeply") from None
    except ValueError as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"the body cannot be read as JSON{where}") from None
    if not isinstance(message, dict):
        raise InvalidRequest("the body is not a JSON object")
    return message


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a repeated key: of two tags with one name, a rule could see either."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequest(f"the key {name!r} is repeated")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_without_doubles, parse_constant=NamedNumber)


def read_tensors(what: str, tensors: object, binary: memoryview) -> dict[str, Array]:
    """The tensors of the list `inputs` or `outputs` (`what` is the singular), whose binary data is `binary` in that
    order. Raises `InvalidRequest`.
    """
    return _with_contents(what, _described(what, tensors), binary)


def _described(what: str, tensors: object) -> list[_Tensor]:
    found: dict[str, _Tensor] = {}
    for tensor in objects(f"{what}s", tensors):
        name = text_of(f"the `name` of an {what}", tensor.get("name"))
        if name in found:
            raise InvalidRequest(f"the {what} {name!r} is repeated")
        datatype = text_of(f"the `datatype` of {name!r}", tensor.get("datatype"))
        numpy_dtype(datatype)
        shape = shape_of(name, tensor.get("shape"))
        parameters = _tensor_parameters(name, tensor)
        size_bytes = parameters.get(BINARY_SIZE)
        if size_bytes is not None:
            size_bytes = _size(name, size_bytes)
            if "data" in tensor:
                raise InvalidRequest(f"the {what} {name!r} has both `data` and `{BINARY_SIZE}`; send one of them")
        is_base64 = parameters.get("content_type") == _BASE64
        found[name] = _Tensor(name, datatype, shape, size_bytes, tensor.get("data"), is_base64)
    return list(found.values())


def _with_contents(what: str, tensors: Sequence[_Tensor], binary: memoryview) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    start = 0
    for one in tensors:
        name, datatype, shape = one.name, one.datatype, one.shape
        if one.size_bytes is None:
            arrays[name] = decode_json(name, datatype, shape, one.data, is_base64=one.is_base64)
            continue
        end = start + one.size_bytes
        if end > len(binary):
            raise InvalidRequest(f"the binary data ends inside the {what} {name!r}: {len(binary)} bytes of {end}")
        arrays[name] = decode_raw(name, datatype, shape, binary[start:end])
        start = end
    if start != len(binary):
        raise InvalidRequest(f"the {what}s take {start} bytes of binary data, got {len(binary)}")
    return arrays


def _outputs(outputs: object, default: bool) -> tuple[dict[str, bool], dict[str, int]]:
    """The requested outputs and whether each is binary, and the number of classes for those to be classified."""
    named: dict[str, bool] = {}
    classes: dict[str, int] = {}
    for output in objects("outputs", [] if outputs is None else outputs):
        name = text_of("the `name` of an output", output.get("name"))
        if name in named:
            raise InvalidRequest(f"the requested output {name!r} is repeated")
        parameters = _tensor_parameters(name, output)
        named[name] = _flag("binary_data", parameters.get("binary_data", default))
        if count := read_classification(name, parameters):
            classes[name] = count
    return named, classes


def objects(what: str, values: object) -> list[dict[str, Any]]:
    """`values` as a short list of JSON objects. Raises `InvalidRequest`."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InvalidRequest(f"expected `{what}` to be a list of objects")
    if len(values) > _MAX_TENSORS:
        raise InvalidRequest(f"`{what}` has {len(values)} tensors; at most {_MAX_TENSORS} are allowed")
    return values


def text_of(what: str, value: object) -> str:
    """`value` as text. Raises `InvalidRequest`."""
    if not isinstance(value, str):
        raise InvalidRequest(f"expected {what} to be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} is not valid Unicode text") from None
    return value


def shape_of(name: str, value: object) -> tuple[int, ...]:
    """`value` as the shape of that tensor. Raises `InvalidRequest`."""
    if not isinstance(value, list) or any(type(size) is not int or abs(size) >= 2**63 for size in value):
        raise InvalidRequest(f"expected the `shape` of {name!r} to be a list of integers")
    return tuple(value)


def _size(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidRequest(f"the `{BINARY_SIZE}` of {name!r} must be a number of bytes")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"expected the parameter {name!r} to be true or false")
    return value


def _tensor_parameters(name: str, tensor: Mapping[str, Any]) -> dict[str, Parameter]:
    parameters = parameters_of(f"tensor {name!r}", tensor.get("parameters"))
    refuse_unsupported(name, parameters)
    return parameters


def parameters_of(what: str, values: object) -> dict[str, Parameter]:
    """`values` as the parameters of a message. Raises `InvalidRequest`."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidRequest(f"{what}: expected `parameters` to be an object")
    for key, value in values.items():
        text_of("the name of a parameter", key)
        if isinstance(value, str):
            text_of(f"the parameter {key!r}", value)
        elif (
            not isinstance(value, (bool, int, float))
            or (isinstance(value, int) and not -(2**63) <= value < 2**64)
            or was_too_large(value)
        ):
            raise InvalidRequest(f"{what}: the parameter {key!r} must be true, false, a 64-bit number or a string")
    return values


def write_infer_response(
    response: InferResponse, wanted: RequestedOutput
) -> tuple[Iterator[bytes], list[bytes | memoryview]]:
    """The JSON object of an answer, in pieces that are made one by one, and the raw contents after it.

    Raises `InvalidRequest` for what cannot be sent.
    """
    outputs: list[tuple[dict[str, Any], Iterator[bytes]]] = []
    raws: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        output: dict[str, Any] = {"name": name, "shape": list(array.shape)}
        values: Iterator[bytes] = iter(())
        if wanted.is_binary(name):
            output["datatype"], raw = encode_raw(name, array)
            output["parameters"] = {BINARY_SIZE: len(raw)}
            raws.append(raw)
        else:
            output["datatype"], values, is_base64 = write_values(array)
            if is_base64:
                output["parameters"] = {"content_type": _BASE64}
            values = chain((b',"data":[',), values, (b"]",))
        outputs.append((output, values))
    message: dict[str, Any] = {"model_name": response.model, "model_version": response.version, "id": response.id}
    if response.parameters:
        message["parameters"] = {key: _finite(value) for key, value in response.parameters.items()}
    return _written(message, outputs), raws


def _written(message: dict[str, Any], outputs: Sequence[tuple[dict[str, Any], Iterator[bytes]]]) -> Iterator[bytes]:
    yield write_json(message)[:-1] + b',"outputs":['
    for index, (output, values) in enumerate(outputs):
        yield (b"," if index else b"") + write_json(output)[:-1]
        yield from values
        yield b"}"
    yield b"]}"


def _finite(value: Parameter) -> Parameter | None:
    return value if not isinstance(value, float) or value - value == 0 else None


def write_server_metadata(metadata: ServerMetadata) -> dict[str, Any]:
    """The object of `GET /v2`."""
    extensions = [*metadata.extensions, *(one for one in EXTENSIONS if one not in metadata.extensions)]
    return {"name": metadata.name, "version": metadata.version, "extensions": extensions}


def write_model_metadata(metadata: ModelMetadata) -> dict[str, Any]:
    """The object of `GET /v2/models/MODEL`."""
    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "inputs": [_spec(spec) for spec in metadata.inputs],
        "outputs": [_spec(spec) for spec in metadata.outputs],
    }


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def write_infer_request(request: InferRequest) -> tuple[bytes, list[bytes | memoryview]]:
    """The JSON of a request for a binary answer, and the raw contents of the inputs that follow it.

    Raises `InvalidRequest` for what cannot be sent in this form.
    """
    inputs: list[dict[str, Any]] = []
    raws: list[bytes | memoryview] = []
    for name, array in request.inputs.items():
        datatype, raw = encode_raw(name, array)
        shape = list(array.shape)
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": {BINARY_SIZE: len(raw)}})
        raws.append(raw)
    parameters = parameters_of("the request", {**request.parameters, "binary_data_output": True})
    message: dict[str, Any] = {"parameters": parameters, "inputs": inputs}
    if request.id:
        message["id"] = request.id
    if request.outputs:
        message["outputs"] = [{"name": name} for name in request.outputs]
    try:
        return json.dumps(message, separators=(",", ":"), allow_nan=False).encode(), raws
    except ValueError:
        raise InvalidRequest("a parameter is not finite, which JSON cannot express") from None


def parse_infer_response(body: bytes, head_bytes: int) -> InferResponse:
    """Parse an answer whose first `head_bytes` are JSON. Numeric arrays are read-only views. Raises
    `InvalidRequest`."""
    view = memoryview(body)
    message = load_object(view[:head_bytes])
    parameters = message.get("parameters")
    if isinstance(parameters, dict):  # null stands for numbers that JSON lacks
        parameters = {key: value for key, value in parameters.items() if value is not None}
    return InferResponse(
        model=text_of("`model_name`", message.get("model_name")),
        outputs=read_tensors("output", message.get("outputs"), view[head_bytes:]),
        version=_text(message, "model_version"),
        id=_text(message, "id"),
        parameters=parameters_of("the answer", parameters),
    )


def parse_server_metadata(body: bytes) -> ServerMetadata:
    """Parse the object of `GET /v2`. Raises `InvalidRequest`."""
    message = load_object(memoryview(body))
    return ServerMetadata(
        text_of("`name`", message.get("name")), _text(message, "version"), _texts(message, "extensions")
    )


def parse_model_metadata(body: bytes) -> ModelMetadata:
    """Parse the object of `GET /v2/models/MODEL`; datatypes stay as the server names them. Raises `InvalidRequest`."""
    message = load_object(memoryview(body))
    return ModelMetadata(
        text_of("`name`", message.get("name")),
        _texts(message, "versions"),
        _text(message, "platform"),
        _specs(message, "inputs"),
        _specs(message, "outputs"),
    )


def parse_config_parameters(body: bytes) -> dict[str, str]:
    """The `parameters` in the object of `GET /v2/models/MODEL/config`. Raises `InvalidRequest`."""
    parameters = load_object(memoryview(body)).get("parameters") or {}
    if not isinstance(parameters, dict) or not all(isinstance(one, dict) for one in parameters.values()):
        raise InvalidRequest("expected `parameters` to map names to objects")
    return {name: _text(one, "string_value") for name, one in parameters.items()}


def parse_flag(body: bytes, name: str) -> bool | None:
    """The object's boolean `name`; None if it has none, as with Triton's empty replies."""
    try:
        value = load_object(memoryview(body)).get(name)
    except InvalidRequest:
        return None
    return value if isinstance(value, bool) else None


def error_text(body: bytes) -> str:
    """The text of an error, on one line and cut to a limit; "" if there is none."""
    try:
        found = load_object(memoryview(body)).get("error")
    except InvalidRequest:
        return ""
    text = found if isinstance(found, str) else ""
    return "".join(one if one.isprintable() else " " for one in text[:_MAX_ERROR_CHARACTERS])


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    return "" if value is None else text_of(f"`{key}`", value)


def _texts(message: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = message.get(key)
    if values is not None and not isinstance(values, list):
        raise InvalidRequest(f"expected `{key}` to be a list of strings")
    return tuple(text_of(f"an element of `{key}`", value) for value in values or ())


def _specs(message: Mapping[str, Any], key: str) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for one in objects(key, message.get(key)):
        name = text_of(f"the `name` in `{key}`", one.get("name"))
        datatype = text_of(f"the `datatype` of {name!r}", one.get("datatype"))
        specs.append(TensorSpec(name, datatype, shape_of(name, one.get("shape"))))
    return tuple(specs)
