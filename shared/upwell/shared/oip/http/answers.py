"""The client's counterpart of `messages`: writes requests as binary data, and parses answers of either form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.contents import encode_raw
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.http.messages import (
    BINARY_SIZE,
    load_object,
    objects,
    parameters_of,
    read_tensors,
    shape_of,
    text_of,
)
from upwell.shared.tensors import TensorSpec


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


_MAX_ERROR_CHARACTERS = 1000


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
