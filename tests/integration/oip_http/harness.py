"""What the tests of the HTTP server share: raw sockets, read answers, and a model that takes one picture."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse, ModelMetadata, Parameter
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.http.server.server import RunningHttpServer
from upwell.shared.tensors import TensorSpec

TIMEOUT_S = 10.0
"""For what should end long before."""

INFER = "/v2/models/echo/infer"
BODY = json.dumps({"inputs": [{"name": "fp32", "datatype": "FP32", "shape": [2], "data": [1, 2.5]}]}).encode()

Serve: TypeAlias = Callable[..., RunningHttpServer]


@dataclass(frozen=True)
class Answer:
    """One answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


def ask(
    where: RunningHttpServer,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """One request on a connection of its own."""
    address = where.addresses[0]
    if context is None:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)
    with closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        return read_answer(connection.getresponse())


def read_answer(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, dict(response.headers), response.read())


def dial(where: RunningHttpServer) -> socket.socket:
    """A bare connection."""
    host, _, port = where.addresses[0].rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def exchange(where: RunningHttpServer, data: bytes) -> bytes:
    """Send bytes, end sending, and read until the server closes."""
    with dial(where) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)
        except OSError:  # it has closed before all of it was sent
            return b""


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = io.BytesIO()
    try:
        while data := connection.recv(65536):
            found.write(data)
    except ConnectionError:
        pass
    return found.getvalue()


def status_of(answer: bytes) -> int:
    """The status of an answer as it came; 0 where the server closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


class PictureModel(FakeDataplane):
    """`cats` takes one encoded picture per row, `rows` FP32 of [-1, 3]; both answer with what they were sent."""

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        specs = {"cats": TensorSpec("image", "BYTES", (-1,)), "rows": TensorSpec("x", "FP32", (-1, 3))}
        if model not in specs:
            return super().metadata(model, version)
        return ModelMetadata(model, ("1",), "fake", (specs[model],), (specs[model],))

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        if request.model not in ("cats", "rows"):
            return super().infer(request, call)
        self.requests.append(request)
        self.calls.append(call)
        facts: dict[str, Parameter] = {
            "upwell.route": "edge",
            "upwell.edge_ms": 1.5,
            "upwell.degraded": False,
            "upwell.reason": "a\r\nb",
        }
        return InferResponse(request.model, request.inputs, "1", request.id, facts)
