"""A client over HTTP with the methods of `OipClient` that the contract of a dataplane calls."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from upwell.shared.oip.codec.tensor_contents import decode_raw, encode_raw
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.http.json_tensors import decode_json, encode_json
from upwell.shared.tensors import TensorSpec


class HttpClient:
    """Sends tensors as binary data, or as JSON where `binary` is false; a connection for each call."""

    def __init__(self, address: str, *, binary: bool) -> None:
        self._address = address
        self._binary = binary

    def close(self) -> None:
        """Nothing is kept."""

    def server_live(self, timeout_s: float) -> bool:
        return bool(self._get("/v2/health/live", timeout_s)["live"])

    def ready(self, timeout_s: float, model: str | None = None, version: str = "") -> bool:
        path = "/v2/health/ready" if model is None else f"{_model(model, version)}/ready"
        try:
            return bool(self._get(path, timeout_s)["ready"])
        except RemoteError as error:
            if error.kind is RemoteErrorKind.NOT_FOUND:
                return False
            raise

    def server_metadata(self, timeout_s: float) -> ServerMetadata:
        found = self._get("/v2", timeout_s)
        return ServerMetadata(found["name"], found["version"], tuple(found["extensions"]))

    def metadata(self, model: str, timeout_s: float, version: str = "") -> ModelMetadata:
        found = self._get(_model(model, version), timeout_s)
        inputs, outputs = (
            tuple(TensorSpec(one["name"], one["datatype"], tuple(one["shape"])) for one in found[key])
            for key in ("inputs", "outputs")
        )
        return ModelMetadata(found["name"], tuple(found["versions"]), found["platform"], inputs, outputs)

    def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        inputs: list[dict[str, Any]] = []
        raws: list[bytes | memoryview] = []
        for name, array in request.inputs.items():
            one: dict[str, Any] = {"name": name, "shape": list(array.shape)}
            if self._binary:
                one["datatype"], raw = encode_raw(name, array)
                one["parameters"] = {"binary_data_size": len(raw)}
                raws.append(raw)
            else:
                one["datatype"], one["data"], is_base64 = encode_json(array)
                one["parameters"] = {"content_type": "base64"} if is_base64 else {}
            inputs.append(one)
        parameters = {**request.parameters, "binary_data_output": self._binary}
        message: dict[str, Any] = {"id": request.id, "inputs": inputs, "parameters": parameters}
        if request.outputs:
            message["outputs"] = [{"name": name} for name in request.outputs]
        head = json.dumps(message).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if self._binary else {}
        path = f"{_model(request.model, request.version)}/infer"
        return self.answer(*self.call("POST", path, timeout_s, b"".join([head, *raws]), headers))

    @staticmethod
    def answer(headers: Mapping[str, str], body: bytes) -> InferResponse:
        """Read the answer to an inference."""
        size = int(headers.get("Inference-Header-Content-Length", len(body)))
        message = json.loads(body[:size])
        outputs = {}
        for one in message["outputs"]:
            name, datatype, shape = one["name"], one["datatype"], tuple(one["shape"])
            parameters = one.get("parameters", {})
            if "binary_data_size" in parameters:
                end = size + parameters["binary_data_size"]
                outputs[name] = decode_raw(name, datatype, shape, body[size:end])
                size = end
            else:
                is_base64 = parameters.get("content_type") == "base64"
                outputs[name] = decode_json(name, datatype, shape, one["data"], is_base64=is_base64)
        return InferResponse(
            message["model_name"], outputs, message["model_version"], message["id"], message.get("parameters", {})
        )

    def call(
        self, method: str, path: str, timeout_s: float, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        """Headers and body of the answer. Raises `RemoteError` by the status that the server names."""
        connection = http.client.HTTPConnection(self._address, timeout=timeout_s)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        status = response.headers.get("Upwell-Status")
        if response.status >= 400 and status:
            raise RemoteError(RemoteErrorKind(status.lower()), json.loads(data)["error"])
        return dict(response.headers), data

    def _get(self, path: str, timeout_s: float) -> Any:
        return json.loads(self.call("GET", path, timeout_s)[1])


def _model(model: str, version: str) -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
