"""Callers that are turned away before they reach a model are seen by the operator, over gRPC and over HTTP."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.faults.programs import Program
from tests.integration.agent.harness import LIMIT_S, client_of, scraped
from tests.unit.models_for_tests import linear
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind

ASK = InferRequest("linear", {"x": np.ones((1, 8), np.float32)})
INFER = "/v2/models/linear/infer"


class Guarded:
    """A service that asks for tokens: `good` may use `linear`, `other` may not, `bad` is nobody's."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.address = program.address()
        self.http = program.find(r"HTTP on (\S+)")
        self._page = program.find(r"metrics on (\S+)")
        self._folder = folder

    def errors(self) -> Mapping[str, float]:
        """What the page says of error answers by now, by status."""
        name = "upwell_cloud_error_answers_total{status="
        return {key[len(name) : -1]: value for key, value in scraped(self._page).items() if key.startswith(name)}

    def requests(self) -> float:
        """How many requests reached a model, by the page."""
        return sum(value for key, value in scraped(self._page).items() if key.startswith("upwell_cloud_requests_total"))

    def ask(self, token: str | None) -> RemoteErrorKind | None:
        """One request over gRPC: None for an answer, else which error."""
        with client_of(self.address, ClientSecurity(token_file=self._folder / token if token else None)) as client:
            try:
                client.infer(ASK, LIMIT_S)
            except RemoteError as error:
                return error.kind
        return None

    def post(self, path: str, token: str | None = None, body: bytes = b"{}") -> int:
        """One request over HTTP: its status."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with closing(http.client.HTTPConnection(self.http, timeout=LIMIT_S)) as connection:
            connection.request("POST", path, body, headers)
            return connection.getresponse().status


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Guarded]:
    folder = tmp_path / "models" / "linear" / "1"
    folder.mkdir(parents=True)
    linear(folder).rename(folder / "model.onnx")
    for name in ("good", "other", "bad"):
        (tmp_path / name).write_text(name)
    known = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "models": models}
        for name, models in (("good", ["linear"]), ("other", ["faces"]))
    ]
    (tmp_path / "tokens.yaml").write_text(json.dumps({"version": 1, "tokens": known}))
    anywhere = {"listen": ["127.0.0.1:0"], "listen_http": ["127.0.0.1:0"], "metrics": "127.0.0.1:0"}
    config = tmp_path / "cloud.yaml"
    serve = {**anywhere, "models": "models", "tokens": "tokens.yaml"}
    config.write_text(json.dumps({"version": 1, "serve": serve}))
    with Program(["serve", "-c", str(config)]) as program:
        yield Guarded(program, tmp_path)


def test_callers_without_a_known_token_are_counted(service: Guarded) -> None:
    assert service.errors() == {}
    assert service.ask("good") is None
    assert [service.ask(token) for token in (None, "bad")] == [RemoteErrorKind.UNAUTHENTICATED] * 2
    assert [service.post(INFER, token) for token in (None, "bad")] == [401, 401]
    assert service.errors() == {"UNAUTHENTICATED": 4}
    assert service.requests() == 1


def test_over_http_what_cannot_be_asked_is_counted_too(service: Guarded) -> None:
    assert service.post(INFER, "good", b"no json") == 400
    assert service.post(INFER, "other", b"no json") == 400
    assert service.post("/v1/models", "good") == 404
    assert service.post("/v2/health/live") == 405
    assert service.errors() == {"INVALID_ARGUMENT": 2, "HTTP 404": 1, "HTTP 405": 1}
    assert service.requests() == 0


def test_over_grpc_what_is_not_permitted_or_cannot_be_read_is_counted(service: Guarded) -> None:
    assert service.ask("other") is RemoteErrorKind.PERMISSION_DENIED
    with grpc.insecure_channel(service.address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer"
        )
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff" * 40, metadata=(("authorization", "Bearer good"),), timeout=LIMIT_S)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert service.errors() == {"PERMISSION_DENIED": 1, "INVALID_ARGUMENT": 1}
    assert service.requests() == 0
